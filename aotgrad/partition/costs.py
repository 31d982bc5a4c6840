"""What values cost: bytes held in memory, and bytes moved to make them.

In: a node's traced value (`meta["val"]`). Out: ints. A size that is symbolic counts with its hint, the value it had when
the function was traced; one that has no hint counts as `UNKNOWN_SIZE`.

    >>> storage_bytes(torch.empty(4, 8).t())
    128

A value costs the memory that it keeps alive, which is its whole storage: a column of a matrix costs the matrix.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx

UNKNOWN_SIZE = 4096  # elements along a size that depends on data; large enough that saving such a value is not free
SYMBOLIC_VALUE_BYTES = 8  # one Python int


def size_hint(value: Any) -> int:
    """The traced value of a symbolic int, or the int itself."""
    if isinstance(value, int):
        return value
    hint = getattr(value.node, "hint", None)
    return int(hint) if isinstance(hint, (int, float)) else UNKNOWN_SIZE


def extent(value: torch.Tensor) -> int:
    """Elements between the first and the last that the tensor reads, both included."""
    sizes = [size_hint(size) for size in value.shape]
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * size_hint(stride) for size, stride in zip(sizes, value.stride(), strict=True))


def dense_bytes(value: torch.Tensor) -> int:
    """Bytes of the elements of a tensor, each counted once per index."""
    count = 1
    for size in value.shape:
        count *= size_hint(size)
    return count * value.element_size()


def extent_bytes(value: torch.Tensor) -> int:
    """Bytes of memory that an op needs for a result of this geometry."""
    if value.layout is not torch.strided:
        return dense_bytes(value)
    return extent(value) * value.element_size()


def storage_bytes(value: torch.Tensor) -> int:
    """Bytes that stay allocated while the tensor lives: its storage, also what it does not read of it."""
    if value.layout is not torch.strided:
        return dense_bytes(value)
    return max(size_hint(value.untyped_storage().nbytes()), extent_bytes(value))


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The tensors that a node computes: none for sizes, several for an op that returns a tuple."""
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    return [item for item in values if isinstance(item, torch.Tensor)]


def bytes_to_hold(node: fx.Node) -> int:
    """Bytes that saving the node's value keeps alive, if nobody else does."""
    if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
        return SYMBOLIC_VALUE_BYTES
    measure = storage_bytes if node.op == "placeholder" else extent_bytes
    return sum(measure(tensor) for tensor in tensors_of(node))


def bytes_written(node: fx.Node) -> int:
    return sum(extent_bytes(tensor) for tensor in tensors_of(node))


def bytes_read(node: fx.Node) -> int:
    """Bytes of the tensor arguments, each argument once."""
    return sum(min(dense_bytes(tensor), extent_bytes(tensor)) for arg in node.all_input_nodes for tensor in tensors_of(arg))
