"""Corrections of Inductor's arithmetic on the indices that its kernels compute."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def leave_strides_unsimplified() -> Iterator[None]:
    """Inside, the stride of an index stays as it is if sympy fails to simplify it.

    Sympy puts fractions and negative numbers in the place of sizes, which `Mod` of torch refuses.
    """
    from torch._inductor.codegen import cpp

    module = sys.modules[cpp.stride_at_vec_range.__module__]
    simplified = module.stride_at

    def stride_at(index: Any, variable: Any) -> Any:
        try:
            return simplified(index, variable)
        except (AssertionError, ZeroDivisionError):
            return index.subs(variable, variable + 1) - index

    with mock.patch.object(module, "stride_at", stride_at):
        yield
