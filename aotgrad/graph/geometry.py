"""Where a tensor lies in its storage, what agrees between two values, and how much memory a value takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table


@dataclass(frozen=True)
class Geometry:
    """Where a tensor lies in its storage, in elements. `offset` is `None` if it stays what it is."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The arguments of `as_strided`."""
        return (self.size, self.stride) if self.offset is None else (self.size, self.stride, self.offset)

    def applied_to(self, tensor: torch.Tensor) -> Geometry:
        """The same without the offset, if the tensor has it."""
        return replace(self, offset=None) if torch_compat.known_equal([self.offset], [tensor.storage_offset()]) else self

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Geometry:
        """The geometry of a tensor; no strides for layouts that have none."""
        if tensor.layout is not torch.strided:
            return cls(tuple(tensor.size()), (), 0)
        return cls(tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset())


def may_overlap_itself(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether several elements may share memory: not if the strides are nested.

    For symbolic numbers, the answer may add a guard.
    """
    if 0 in sizes:
        return False
    reach = 0
    for step, size in sorted((step, size) for size, step in zip(sizes, strides, strict=True) if size > 1):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def contiguous_strides(size: Sequence[Any]) -> list[Any]:
    """Strides of a contiguous tensor. Symbolic sizes are only multiplied, which adds no guard."""
    strides: list[Any] = []
    step: Any = 1
    for extent in reversed(size):
        strides.append(step)
        step = step * extent
    return strides[::-1]


def kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (type(tensor), tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg())


def geometry_key(value: Any) -> tuple | None:
    """A key that is equal for equal views of one tensor. Symbolic numbers are compared by their expressions."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    numbers = (*value.size(), *value.stride(), value.storage_offset())
    return (*kind(value), value.dim(), *map(torch_compat.expression_of, numbers))


def same_value_type(one: Any, other: Any) -> bool:
    """Whether two values are of one class, or tensors of one dtype, device, layout, size, stride and the same lazy flags."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other)
    a, b = ((*kind(tensor)[1:], tensor.layout, tensor.dim()) for tensor in (one, other))
    if a != b or not torch_compat.known_equal(one.size(), other.size()):
        return False
    return torch_compat.known_equal(torch_compat.strides(one), torch_compat.strides(other))


def bytes_of_value(node: fx.Node) -> int:
    """The bytes of a node's tensors, with the sizes of the traced call; 0 for sizes that depend on values."""
    tensors = [value for value in op_table.items_of(node.meta.get("val")) if isinstance(value, torch.Tensor)]
    known = [value for value in tensors if not torch_compat.has_unknown_sizes(value)]
    return sum(math.prod(torch_compat.hints(value.size())) * value.element_size() for value in known)
