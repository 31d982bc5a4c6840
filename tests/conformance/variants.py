"""Ways to call a subject: the kind of inputs, the form, and the compilation.

>>> VARIANTS["dynamic core"]
Variant(name='dynamic core', dtype=None, dynamic=True, decompositions='core', first=<First.PLAIN: 'plain'>, ...)
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch


class First(enum.Enum):
    """The first tensor of a call."""

    PLAIN = "plain"
    NON_CONTIGUOUS = "non-contiguous"
    NO_GRAD = "no grad"


class Form(enum.Enum):
    """The form of an operator."""

    FUNCTION = "function"
    IN_PLACE = "in-place"
    OUT = "out="


class Backend(enum.Enum):
    """The tracer of the function, and the compiler of the graphs."""

    EAGER = "eager"
    DYNAMO = "dynamo"
    INDUCTOR = "inductor"


MAIN_DTYPES = (torch.float64, torch.float32, torch.complex128, torch.int64, torch.bool)
"""From which a variant takes one that names none."""


@dataclass(frozen=True)
class Variant:
    """One way to call and to compile.

    Attributes:
        dtype: of the inputs; `None`: the main one of the subject.
        dynamic: sizes are symbolic.
        decompositions: `"none"`, `"core"` (core ATen's) or `"inductor"`.
        backend: `EAGER`: `aot_function`, whose graphs run as they are; `DYNAMO`: the same by `torch.compile`, for
            higher-order operators, which need it; `INDUCTOR`: `torch.compile`, whose graphs Inductor compiles.
        every: run only every n-th subject.
    """

    name: str
    dtype: torch.dtype | None = None
    dynamic: bool = False
    decompositions: str = "none"
    first: First = First.PLAIN
    form: Form = Form.FUNCTION
    backend: Backend = Backend.EAGER
    every: int = 1

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The first that a subject supports is used."""
        return MAIN_DTYPES if self.dtype is None else (self.dtype,)


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("static"),
        Variant("float32", dtype=torch.float32),
        Variant("complex128", dtype=torch.complex128),
        Variant("int64", dtype=torch.int64),
        Variant("bool", dtype=torch.bool),
        Variant("non-contiguous", first=First.NON_CONTIGUOUS),
        Variant("first without grad", first=First.NO_GRAD),
        Variant("in-place", form=Form.IN_PLACE),
        Variant("out=", form=Form.OUT),
        Variant("core", decompositions="core"),
        Variant("inductor's", decompositions="inductor"),
        Variant("dynamic", dynamic=True),
        Variant("dynamic core", dynamic=True, decompositions="core"),
        Variant("dynamic inductor's", dynamic=True, decompositions="inductor"),
        Variant("higher-order", backend=Backend.DYNAMO),
        Variant("through Inductor", backend=Backend.INDUCTOR, every=5),
    )
}
"""By name. `inductor's` are Inductor's decompositions with eager halves."""
