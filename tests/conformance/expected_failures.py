"""Every subject that does not pass, with the reason; sorted by name. A line that passes fails the suite.

`variants` lists the failing variants; empty means all. There are three reasons. A branch in Python or C++ needs the value
of a tensor, which a trace does not have. A tensor has another layout than in eager. Torch cannot trace the op.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotgrad.conformance.verdict import FellBack, OtherStrides, Refused

TORCH = "2.13"
"""The release whose databases the table is for."""


@dataclass(frozen=True)
class Failure:
    """One line. `kind` is the class of its verdict."""

    subject: str
    kind: type
    reason: str
    variants: tuple[str, ...] = ()


DYNAMIC = ("dynamic", "dynamic core", "dynamic inductor's")
ROWS = "a sparse CSR input requires grad, and torch aborts the process when it is traced"

EXPECTED_FAILURES = (
    Failure("addbmm", FellBack, "eager enlarges the tensor it writes to, torch's shape function raises", ("in-place",)),
    Failure("istft", OtherStrides, "a gradient is dense with its dimensions in another order", DYNAMIC),
    Failure("normal_in_place", Refused, "fills a tensor with gaps and draws in another order", ("non-contiguous",)),
    Failure("sparse_mm_reduce", Refused, ROWS),
    Failure("sparse_sampled_addmm", Refused, ROWS),
    Failure("to_sparse", Refused, "torch's functionalization does not record a sparse result that requires grad"),
)
