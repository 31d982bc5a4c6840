"""The options of one compilation, checked when they are made. The only reader of the environment.

>>> Options.from_mapping({"dynamic": True}).dynamic
True
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aotgrad.errors import OptionError


@dataclass(frozen=True)
class Options:
    """How to compile.

    Attributes:
        verify: check every stage's result against its contract (`AOTGRAD_VERIFY=1` turns it on everywhere).
        dynamic: `True`: sizes of tensor arguments are symbolic, so one plan serves many shapes; `None`: those that
            change between calls; `False`: none. For `aot_function` and `aot_module`; Dynamo decides for itself.
        enabled: `False` runs the original function eagerly, to see whether aotgrad is at fault (`AOTGRAD_DISABLE=1`).
        partitioner: `"min_cut"` or `"save_all"`: what the forward saves for the backward.
        plan_limit: how many plans one function may have; further calls run eagerly.
        mode: Inductor's: `"default"`, `"reduce-overhead"` (CUDA graphs), `"max-autotune"`, `"max-autotune-no-cudagraphs"`.
        keep_input_mutations: in graphs without a backward, write mutated inputs inside the graph, not after it.
    """

    verify: bool = False
    dynamic: bool | None = False
    enabled: bool = True
    partitioner: str = "min_cut"
    mode: str = "default"
    keep_input_mutations: bool = False
    plan_limit: int = 8

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
        defaults = {
            "enabled": os.environ.get("AOTGRAD_DISABLE") != "1",
            "verify": os.environ.get("AOTGRAD_VERIFY") == "1",
        }
        return cls(**{**defaults, **options})

    def replace(self, **changes: Any) -> Options:
        return dataclasses.replace(self, **changes)


LEGAL_VALUES: dict[str, Sequence[Any]] = {
    "dynamic": (True, False, None),
    "enabled": (True, False),
    "keep_input_mutations": (True, False),
    "mode": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    "partitioner": ("min_cut", "save_all"),
    "plan_limit": range(1, 1025),
    "verify": (True, False),
}


def _check(name: str, value: Any) -> None:
    legal = LEGAL_VALUES[name]
    if not any(type(value) is type(choice) and value == choice for choice in legal):
        choices = f"{legal[0]} to {legal[-1]}" if isinstance(legal, range) else ", ".join(map(repr, legal))
        raise OptionError(f"option {name!r} is {value!r}; legal values are {choices}")
