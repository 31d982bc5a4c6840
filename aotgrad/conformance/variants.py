"""Ways to call a subject: the kind of inputs, the form, and the compilation.

>>> OF_BACKENDS["dynamic"].dynamic
True
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import torch


class First(enum.Enum):
    """The first tensor of a call."""

    PLAIN = "plain"
    NON_CONTIGUOUS = "non-contiguous"
    NO_GRAD = "no grad"


class OperatorForm(enum.Enum):
    """The form of an operator."""

    FUNCTION = "function"
    IN_PLACE = "in-place"
    OUT = "out="


class Compilation(enum.Enum):
    """What traces the function; the last one also says what compiles the graphs."""

    DIRECT = "aot_function"
    DYNAMO = "dynamo"
    INDUCTOR = "inductor"


MAIN_DTYPES = (torch.float64, torch.float32, torch.complex128, torch.int64, torch.bool)
"""From which a variant takes one that names none."""


@dataclass(frozen=True)
class CallVariant:
    """One way to call and to compile.

    Attributes:
        dtype: of the inputs; `None`: the main one of the subject.
        dynamic: sizes are symbolic.
        decompositions: `"none"`, `"core"` (core ATen's), `"inductor"`, or those of the `"backend"`.
        compilation: `DIRECT`: `aot_function`; `DYNAMO`: `torch.compile`, which higher-order operators need; `INDUCTOR`:
            the same with Inductor as the backend.
        every: run only every n-th subject.
    """

    name: str
    dtype: torch.dtype | None = None
    dynamic: bool = False
    decompositions: str = "none"
    first: First = First.PLAIN
    form: OperatorForm = OperatorForm.FUNCTION
    compilation: Compilation = Compilation.DIRECT
    every: int = 1

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The first that a subject supports is used."""
        return MAIN_DTYPES if self.dtype is None else (self.dtype,)

    @property
    def runs_eager_ops(self) -> bool:
        """Whether the compiled function runs the same ops as eager, and so draws the same random numbers."""
        return self.decompositions == "none" and self.compilation is Compilation.DIRECT


def of_backends(name: str, dtype: torch.dtype = torch.float32, **settings: Any) -> CallVariant:
    return CallVariant(name, dtype, decompositions="backend", **settings)


OF_BACKENDS = {
    variant.name: variant
    for variant in (
        of_backends("float32"),
        of_backends("float64", torch.float64),
        of_backends("bfloat16", torch.bfloat16),
        of_backends("complex64", torch.complex64),
        of_backends("int64", torch.int64),
        of_backends("bool", torch.bool),
        of_backends("non-contiguous", first=First.NON_CONTIGUOUS),
        of_backends("in-place", form=OperatorForm.IN_PLACE),
        of_backends("out=", form=OperatorForm.OUT),
        of_backends("dynamic", dynamic=True),
    )
}
"""The variants in which backends are checked, by name; float32 where the name does not say otherwise."""
