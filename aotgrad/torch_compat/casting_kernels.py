"""Ops whose kernels call ops that autocast casts.

A dispatch mode gets such an op with autocast off, whatever surrounds the call. The functions that reach it are called while
autocast is known, so `note_autocast` tells the mode; then `run_casting_kernel` lets the mode record what the kernel calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensorMode

_KEYS = {"cpu": torch._C.DispatchKey.AutocastCPU, "cuda": torch._C.DispatchKey.AutocastCUDA}

CASTING_KERNELS = {
    torch.ops.aten.affine_grid_generator.default: torch._C.DispatchKey.CompositeExplicitAutograd,
    torch.ops.aten._trilinear.default: torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
    torch.ops.aten.linalg_pinv.atol_rtol_tensor: torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
}
"""The ops, and the dispatch keys of their kernels."""

CASTING_FUNCTIONS = frozenset(
    {
        torch.nn.functional.affine_grid,
        torch.affine_grid_generator,
        torch.nn.functional.bilinear,
        torch.bilinear,
        torch._trilinear,
        torch.linalg.pinv,
        torch.pinverse,
        torch.Tensor.pinverse,
    }
)
"""The functions that call them."""


@contextlib.contextmanager
def note_autocast(mode: FunctionalTensorMode) -> Iterator[None]:
    """Inside, ops of `CASTING_KERNELS` are recorded with the autocast that is on now."""
    before, mode._casts = mode._casts, frozenset(filter(torch.is_autocast_enabled, _KEYS))
    try:
        yield
    finally:
        mode._casts = before


def run_casting_kernel(mode: FunctionalTensorMode, op: Any, classes: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """The result of an op's kernel, whose calls are recorded; `NotImplemented` without autocast."""
    device = args[0].device.type
    if device not in mode._casts:
        return NotImplemented
    excluded = torch._C._dispatch_tls_local_exclude_set().remove(_KEYS[device])
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded), mode:
        return op._op_dk(CASTING_KERNELS[op], *args, **kwargs)
