"""Differences from eager that are known, each with the strict expected failure or the document that says so.

As narrow as it can be told: a predicate of one line of difference.
"""

from __future__ import annotations

import re

OTHER_TYPE_OF_ERROR = (
    r"raised \w+: .*; eager: RuntimeError: a view of a leaf Variable that requires grad is being used in an in-place op",
    r"raised AssertionError: matmul does not support 0-dimensional tensors.*; eager: RuntimeError",
    r"raised ValueError: Cannot view a tensor with shape .*; eager: RuntimeError: view size is not compatible",
    r"raised IndexError: tuple index out of range; eager: RuntimeError: split expects at least a 1-dimensional tensor",
    r"raised RuntimeError: slice\(\) cannot be applied to a 0-dim tensor.*; eager: IndexError",
)
"""Torch's kernels in Python, which run while tracing, raise another class for the same mistake."""

NOT_SAVED = (
    r"raised nothing; eager: RuntimeError: one of the variables needed for gradient computation has been modified by an",
)
"""A partition recomputes what eager saves: the gradient is that of the forward as it was, where eager raises."""

FREED_TOGETHER = (r"raised RuntimeError: Trying to backward through the graph a second time .*; eager: nothing",)
"""A second backward without `retain_graph`: what a segment saves is freed together."""

CHECKED_BY_KERNELS = (
    r"raised nothing; eager: RuntimeError: setStorage: sizes .* are out of bounds for storage of size",
    r"raised nothing; eager: IndexError: index is out of bounds for dimension with size 0",
    r"raised nothing; eager: RuntimeError: index_select\(\): self indexing axis dim should be positive",
)
"""Torch's shape functions let pass what its kernels refuse; where nobody needs the result, no kernel runs."""

LAID_OUT_ANEW = (r"[oc]\d+: stride: ",)
"""A transposed view that was written to is contiguous in the graph for some ops, and so is what is computed from it."""

VIEWS_IN_THE_TRACE = (r"o\d+: base: None; eager: o\d+", r"o\d+: family: o\d+; eager: o\d+")
"""Some kernels (`matmul` of three dimensions) return a view in the trace, of what nobody can see in eager."""

KNOWN = (
    *VIEWS_IN_THE_TRACE,
    *LAID_OUT_ANEW,
    *OTHER_TYPE_OF_ERROR,
    *NOT_SAVED,
    *FREED_TOGETHER,
    *CHECKED_BY_KERNELS,
)


def is_known(line: str) -> bool:
    """Whether a line that `compare` found is a known difference."""
    return any(re.match(pattern, line) for pattern in KNOWN)
