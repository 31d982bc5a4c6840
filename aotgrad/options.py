"""The options of one compilation, checked when they are made. The only reader of the environment.

    >>> Options.from_mapping({"dynamic": True}).dynamic
    True
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aotgrad.errors import OptionError


@dataclass(frozen=True)
class Options:
    """How to compile.

    Attributes:
        verify: check every stage's result against its contract (`AOTGRAD_VERIFY=1` turns it on everywhere).
        dynamic: sizes of tensor arguments are symbolic, so one plan serves many shapes.
        partitioner: `"min_cut"` or `"save_all"`: what the forward saves for the backward.
        mode: Inductor's: `"default"`, `"reduce-overhead"` (CUDA graphs), `"max-autotune"`, `"max-autotune-no-cudagraphs"`.
        keep_input_mutations: in graphs without a backward, write mutated inputs inside the graph, not after it.
    """

    verify: bool = False
    dynamic: bool = False
    partitioner: str = "min_cut"
    mode: str = "default"
    keep_input_mutations: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field.name, getattr(self, field.name))

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any] | None) -> Options:
        """Options from a user's dictionary; the environment gives the defaults.

        Raises:
            OptionError: for an unknown name or a value that is not legal; the message lists the legal ones.
        """
        options = dict(options or {})
        unknown = sorted(set(options) - LEGAL_VALUES.keys())
        if unknown:
            raise OptionError(f"unknown option {unknown[0]!r}; the options are {', '.join(sorted(LEGAL_VALUES))}")
        return cls(**{"verify": os.environ.get("AOTGRAD_VERIFY") == "1", **options})

    def replace(self, **changes: Any) -> Options:
        return dataclasses.replace(self, **changes)


LEGAL_VALUES: dict[str, tuple[Any, ...]] = {
    "dynamic": (True, False),
    "keep_input_mutations": (True, False),
    "mode": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    "partitioner": ("min_cut", "save_all"),
    "verify": (True, False),
}


def _check(name: str, value: Any) -> None:
    legal = LEGAL_VALUES[name]
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in legal):
        choices = ", ".join(repr(choice) for choice in legal)
        raise OptionError(f"option {name!r} is {value!r}; legal values are {choices}")
