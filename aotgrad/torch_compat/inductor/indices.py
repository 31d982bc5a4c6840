"""Corrections of Inductor's arithmetic on the indices that its kernels compute."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def leave_strides_unsimplified() -> Iterator[None]:
    """Inside, the stride of an index stays as it is if sympy fails to simplify it.

    Sympy puts fractions and negative numbers in the place of sizes, which `Mod` of torch refuses.
    """
    from torch._inductor.codegen import cpp

    module = sys.modules[cpp.stride_at_vec_range.__module__]

    def stride_as_it_is(index: Any, variable: Any) -> Any:
        return index.subs(variable, variable + 1) - index

    def index_as_it_is(index: Any, variable: Any, length: int) -> Any:
        return index

    instead = {"stride_at": stride_as_it_is, "simplify_index_in_vec_range": index_as_it_is}
    careful: dict[str, Any] = {name: _if_sympy_fails(getattr(module, name), other) for name, other in instead.items()}
    with mock.patch.multiple(module, **careful):
        yield


def _if_sympy_fails(simplified: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        try:
            return simplified(*args)
        except (AssertionError, ZeroDivisionError):
            return instead(*args)

    return call
