"""What values cost: bytes held in memory between the halves, and bytes moved to make a value again.

In: a node, of which the traced value (`meta["val"]`) is read, and the `JointAnalysis`. Out: ints.

    >>> storage_bytes(torch.empty(4, 8).t())
    128

A value costs the memory that it keeps alive, which is its whole storage: a column of a matrix costs the matrix. What is
alive anyway costs nothing: parameters and buffers, and tensors that the caller gets. A size that is symbolic counts
with its hint, the value that it had when the function was traced; one that has no hint counts as `UNKNOWN_SIZE`.

Recomputation is costed for a backend that fuses: a cheap op whose readers are fused with it moves no memory of its own.
What it reads is charged where that is saved, since a saved value is held and also read. The unit is one byte of memory
traffic; holding a byte costs as much as moving one.

Limits: nothing is measured, and a value that several backward kernels read is charged as if there were one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx

from aotgrad.partition import op_table
from aotgrad.partition.graphs import JointAnalysis

UNKNOWN_SIZE = 4096  # elements along a size that depends on data; large enough that saving such a value is not free
SYMBOLIC_VALUE_BYTES = 8  # one Python int

TRAFFIC_PER_BYTE_HELD = 1.0  # bytes moved that are worth one byte held: the default point of the memory/time trade
FUSED_SHARE = 0.02  # of an op's traffic, what it costs inside a fused kernel; it bounds chains at about 30 ops
COST_UNITS_PER_BYTE = 1024  # capacities are ints, so costs below a byte need a finer unit


# --- Bytes -----------------------------------------------------------------------------------------------------------


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


def bytes_kept_alive(node: fx.Node) -> int:
    """Bytes that saving the node's value keeps alive, if nobody else does."""
    if op_table.is_symbolic_value(node):
        return SYMBOLIC_VALUE_BYTES
    measure = storage_bytes if node.op == "placeholder" else extent_bytes
    return sum(measure(tensor) for tensor in tensors_of(node))


def held_bytes(analysis: JointAnalysis, node: fx.Node) -> int:
    """Bytes that are alive between the halves only because `node` is saved; for an overwritten input, of its copy."""
    if node in analysis.held:
        return 0
    if node in analysis.copied:
        return sum(extent_bytes(tensor) for tensor in tensors_of(node))
    return bytes_kept_alive(node)


def traffic(node: fx.Node) -> int:
    """Bytes that the op reads and writes when it runs by itself."""
    written = sum(extent_bytes(tensor) for tensor in tensors_of(node))
    tensors = [tensor for arg in node.all_input_nodes for tensor in tensors_of(arg)]
    return written + sum(min(dense_bytes(tensor), extent_bytes(tensor)) for tensor in tensors)


# --- Costs of the two choices ----------------------------------------------------------------------------------------


def cost_of_saving(analysis: JointAnalysis, node: fx.Node) -> int:
    """Cost units of holding the value, and of reading it in the backward."""
    held = held_bytes(analysis, node)
    return round(held * (1 + TRAFFIC_PER_BYTE_HELD) * COST_UNITS_PER_BYTE)


def cost_of_recomputing(analysis: JointAnalysis, node: fx.Node, materialized: bool) -> int:
    """Cost units of running the op in the backward.

    Args:
        materialized: a backward op that cannot be fused reads the value, so it is written to memory and read again.
    """
    if node in analysis.unclaimed or node.op == "get_attr":
        return 0
    if op_table.reads_size(node.target):
        return round(2 * cost_of_saving(analysis, node))
    if op_table.is_symbolic_value(node) or op_table.is_getitem(node.target):
        return 0
    moved = FUSED_SHARE * traffic(node)
    if materialized:
        passes = 1 if op_table.is_creation(node.target) else 2
        moved += passes * sum(extent_bytes(tensor) for tensor in tensors_of(node))
    return round(TRAFFIC_PER_BYTE_HELD * moved * COST_UNITS_PER_BYTE)
