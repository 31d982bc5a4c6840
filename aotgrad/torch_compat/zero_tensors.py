"""Arithmetic with zero tensors, which stand for tangents in forward mode, for symbolic sizes.

Torch's own kernels read the sizes as numbers, which would specialize a plan on each size.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


@contextlib.contextmanager
def symbolic_zero_tensors() -> Iterator[None]:
    """Inside, arithmetic with zero tensors keeps symbolic sizes; results are the same."""
    library = torch.library.Library("aten", "IMPL", "ZeroTensor")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*other operators may also be overridden", category=UserWarning)
            for name, kernel in _KERNELS.items():
                library.impl(name, kernel)
        yield
    finally:
        library._destroy()


def _sum(one: Any, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    if _is_zeros(one) and _is_zeros(other):
        return _zeros(one, other)
    kept = other if _is_zeros(one) else one
    copy = torch.ops.aten._to_copy.default(_as_tensor(kept).expand(_shape(one, other)), dtype=_dtype(one, other))
    return copy * alpha if kept is other and alpha != 1 else copy


def _difference(one: Any, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    return _sum(one, other, alpha=-alpha)


def _zeros(one: Any, other: Any) -> torch.Tensor:
    """A product with zeros, whatever the other factor is."""
    return torch._efficientzerotensor(_shape(one, other), dtype=_dtype(one, other), device=_device(one, other))


def _quotient(one: Any, other: Any) -> torch.Tensor:
    """A quotient: zeros, or eager's nan or inf for a division by them."""
    shape, dtype, device = _shape(one, other), _quotients_dtype(one, other), _device(one, other)
    if not _is_zeros(other):
        return torch._efficientzerotensor(shape, dtype=dtype, device=device)
    return torch.full(shape, math.nan if _is_zeros(one) else math.inf, dtype=dtype, device=device)


def _is_same_size(one: torch.Tensor, other: torch.Tensor) -> bool:
    return tuple(one.shape) == tuple(other.shape)


def _has_same_storage_numel(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both hold the same number of elements in memory; zero tensors hold one."""
    return all(map(_is_one_element, (one, other)))


def _is_one_element(value: torch.Tensor) -> bool:
    """Whether a tensor certainly holds one element in memory; adds no guard."""
    places = () if value._is_zerotensor() else zip(value.shape, value.stride(), strict=True)
    return all(_is_plainly(size, 1) or _is_plainly(stride, 0) for size, stride in places)


def _is_plainly(number: Any, value: int) -> bool:
    return isinstance(number, int) and number == value


def _zeros_like(one: torch.Tensor, other: torch.Tensor, *, self_num_batch_dims: int = 0) -> torch.Tensor:
    """Zeros with the layout of `other`."""
    assert self_num_batch_dims == 0, "zeros have no batch of their own"
    empty = torch.ops.aten.new_empty_strided.default(other, other.shape, other.stride(), dtype=one.dtype, device=one.device)
    return torch.ops.aten.zeros_like.default(empty)


def _device(one: Any, other: Any) -> torch.device:
    devices = [value.device for value in (one, other) if isinstance(value, torch.Tensor)]
    return next((device for device in devices if device.type != "cpu"), devices[0])


def _is_zeros(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value._is_zerotensor()


def _as_tensor(value: Any) -> torch.Tensor:
    """A tensor for a number: these kernels get numbers where eager's get tensors."""
    return value if isinstance(value, torch.Tensor) else torch.scalar_tensor(value)


def _shape(one: Any, other: Any) -> tuple[Any, ...]:
    return torch.broadcast_shapes(*(value.shape if isinstance(value, torch.Tensor) else () for value in (one, other)))


def _dtype(one: Any, other: Any) -> torch.dtype:
    """The dtype of a result. A number counts as a 0-d tensor of its own dtype, as in torch's own kernels.

    `torch.result_type` would allocate zeros, reading the sizes as numbers.
    """
    dtypes, has_dims = zip(*((_dtype_of(v), isinstance(v, torch.Tensor) and v.dim() > 0) for v in (one, other)), strict=True)
    if has_dims[0] == has_dims[1]:
        return torch.promote_types(*dtypes)
    return _with_lower(*(dtypes if has_dims[0] else dtypes[::-1]))


def _with_lower(higher: torch.dtype, lower: torch.dtype) -> torch.dtype:
    """The dtype of a tensor with dimensions combined with a 0-d one, which counts only if it is of a larger kind."""
    if higher.is_complex or (higher.is_floating_point and not lower.is_complex):
        return higher
    if higher.is_floating_point:
        return higher.to_complex()
    is_larger = higher is torch.bool or lower.is_floating_point or lower.is_complex
    return torch.promote_types(higher, lower) if is_larger else higher


def _dtype_of(value: Any) -> torch.dtype:
    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, (float, torch.SymFloat)):
        return torch.float64
    if isinstance(value, complex):
        return torch.complex128
    return torch.bool if isinstance(value, (bool, torch.SymBool)) else torch.int64


def _quotients_dtype(one: Any, other: Any) -> torch.dtype:
    dtype = _dtype(one, other)
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


_KERNELS: Mapping[str, Callable] = {
    "add.Tensor": _sum,
    "sub.Tensor": _difference,
    "mul.Tensor": _zeros,
    "div.Tensor": _quotient,
    "_new_zeros_with_same_feature_meta": _zeros_like,
    "_has_same_storage_numel": _has_same_storage_numel,
    "is_same_size": _is_same_size,
}
