"""What values cost: bytes held in memory between the halves, and the time to recompute a value.

In: a node with its traced value (`meta["val"]`), and the `JointAnalysis`. Out: ints.

    >>> allocated_bytes(torch.empty(4, 8).t())
    128

A value costs the memory that it keeps alive, which is its whole storage: a column of a matrix costs the matrix. Memory
that is alive anyway costs nothing: parameters, buffers, and tensors that the caller gets. A symbolic size counts with its
hint, the value from the trace; a size without a hint counts as `UNKNOWN_SIZE`.

Time is counted in bytes of memory traffic. An op by itself costs the larger of two figures: the bytes that it reads and
writes, and its floating point operations divided by how many of them a device does while it moves a byte. `fusion` has the
costs for backends that fuse ops into kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.fx as fx
from torch.utils.flop_counter import flop_registry

from aotgrad.graph import op_table
from aotgrad.partition import speeds
from aotgrad.partition.graphs import JointAnalysis

UNKNOWN_SIZE = 4096  # elements along a data-dependent size; large enough that saving such a value is not free
SYMBOLIC_VALUE_BYTES = 8  # one Python int

TIME_PER_BYTE = 64  # units of time for one byte moved: times are ints, and a fused op costs a fraction of its bytes
PASSES_OF_UNKNOWN_OPS = 4  # sorts, scans, transforms: they do more than read and write once


# --- Bytes -----------------------------------------------------------------------------------------------------------


def size_hint(value: Any) -> int:
    """The traced value of a symbolic int, or the int itself."""
    if isinstance(value, int):
        return value
    hint = getattr(value.node, "hint", None)
    return int(hint) if isinstance(hint, (int, float)) else UNKNOWN_SIZE


def extent(value: torch.Tensor) -> int:
    """Elements between the first and the last that the tensor reads, both included."""
    last = 0
    for size, stride in zip(value.shape, value.stride(), strict=True):
        count = size if type(size) is int else size_hint(size)
        if count == 0:
            return 0
        last += (count - 1) * (stride if type(stride) is int else size_hint(stride))
    return last + 1


def dense_bytes(value: torch.Tensor) -> int:
    """Bytes of the elements of a tensor, each counted once per index."""
    count = 1
    for size in value.shape:
        count *= size if type(size) is int else size_hint(size)
    return count * value.element_size()


def extent_bytes(value: torch.Tensor) -> int:
    """Bytes of memory that an op needs for a result of this geometry."""
    if value.layout is not torch.strided:
        return dense_bytes(value)
    return extent(value) * value.element_size()


def allocated_bytes(value: torch.Tensor) -> int:
    """Bytes that stay allocated while the tensor lives: its whole storage, read or not."""
    if value.layout is not torch.strided:
        return dense_bytes(value)
    return max(size_hint(value.untyped_storage().nbytes()), extent_bytes(value))


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The tensors that a node computes: none for sizes, several for an op that returns a tuple."""
    return [item for item in op_table.items_of(node.meta.get("val")) if isinstance(item, torch.Tensor)]


def bytes_kept_alive(node: fx.Node) -> int:
    """Bytes that saving the node's value keeps alive, if nothing else does."""
    if op_table.is_symbolic_value(node):
        return SYMBOLIC_VALUE_BYTES
    measure = allocated_bytes if node.op == "placeholder" else extent_bytes
    return sum(measure(tensor) for tensor in tensors_of(node))


def held_bytes(analysis: JointAnalysis, node: fx.Node) -> int:
    """Bytes alive between the halves only because `node` is saved. For an overwritten input, those of its copy."""
    if node in analysis.held or node.op == "get_attr":
        return 0
    if node in analysis.copied:
        return sum(extent_bytes(tensor) for tensor in tensors_of(node))
    return bytes_kept_alive(node)


def held_bytes_of(analysis: JointAnalysis, nodes: Iterable[fx.Node]) -> int:
    return sum(held_bytes(analysis, node) for node in nodes)


def eager_bytes(analysis: JointAnalysis) -> int | None:
    """The bytes alive between the halves in eager, where sizes take none and so are added; `None` if unknown."""
    own = analysis.joint.eager_bytes
    numbers = SYMBOLIC_VALUE_BYTES * sum(map(op_table.is_symbolic_value, analysis.forward))
    return None if own is None else own + held_bytes_of(analysis, analysis.saved_in_eager) + numbers


def traffic(node: fx.Node) -> int:
    """Bytes that the op reads and writes when it runs by itself."""
    return bytes_written(node) + sum(bytes_read(arg) for arg in node.all_input_nodes)


def bytes_written(node: fx.Node) -> int:
    return sum(extent_bytes(tensor) for tensor in tensors_of(node))


def bytes_moved(node: fx.Node) -> int:
    """The bytes that count for a value that a fused kernel reads or writes.

    On a CPU, Inductor writes a mask 20 times as slowly as a float, and reads it 6 times as slowly. A mask counts as two
    bytes an element less than its source. So it is recomputed if the source is held anyway, and still saved otherwise.
    """
    return sum(extent_bytes(tensor) * mask_weight(node, tensor) for tensor in tensors_of(node))


def mask_weight(node: fx.Node, tensor: torch.Tensor) -> int:
    if tensor.dtype is not torch.bool or tensor.device.type != "cpu":
        return 1
    sources = (source.element_size() for arg in node.all_input_nodes for source in tensors_of(arg))
    return max(1, max(sources, default=1) - 2)


def bytes_read(node: fx.Node) -> int:
    """Bytes of memory that an op reads from this argument; for an expanded tensor, each byte counts once."""
    return sum(min(dense_bytes(tensor), extent_bytes(tensor)) for tensor in tensors_of(node))


# --- Time ------------------------------------------------------------------------------------------------------------


COUNTED_AS = {
    "aten._scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": "_scaled_dot_product_flash_attention_backward",
}
"""Contractions that PyTorch's table of FLOP formulas lacks, and an op of `aten` with the same formula."""


def flops(node: fx.Node) -> int:
    """Floating point operations of a contraction (matrix product, convolution, attention); 0 for other ops."""
    same = COUNTED_AS.get(op_table.op_name(node.target))
    packet = getattr(torch.ops.aten, same) if same else getattr(node.target, "overloadpacket", node.target)
    formula = flop_registry.get(packet)
    if formula is None:
        return 0
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: _hinted_shape(arg.meta.get("val")))
    try:
        return int(formula(*args, **kwargs, out_val=_hinted_shape(node.meta.get("val"))))
    except (AssertionError, IndexError, TypeError):  # the formula does not support this call: count traffic only
        return 0


def _hinted_shape(value: Any) -> Any:
    """A tensor's shape, which formulas of `flop_registry` take instead of the tensor. Uses hints, to add no guard."""
    if isinstance(value, torch.Tensor):
        return tuple(size_hint(size) for size in value.shape)
    if isinstance(value, (tuple, list)):
        return tuple(_hinted_shape(item) for item in value)
    return size_hint(value) if isinstance(value, torch.SymInt) else value


def time_alone(node: fx.Node, flops_per_byte: int | None = None) -> int:
    """Units of time that the op takes in a kernel of its own.

    Args:
        flops_per_byte: floating point operations that the device does while it moves a byte; by default those of `speeds`.
    """
    operations = flops(node)
    known = operations or op_table.is_fusible(node.target) or op_table.draws_each(node.target)
    moved = traffic(node) * (1 if known else PASSES_OF_UNKNOWN_OPS)
    return max(moved, operations // (flops_per_byte or usual_flops_per_byte(node))) * TIME_PER_BYTE


def usual_flops_per_byte(node: fx.Node) -> int:
    """The figure for the device and dtype of a node's first result."""
    tensors = tensors_of(node)
    return speeds.flops_per_byte(tensors[0], "convolution" in str(node.target)) if tensors else speeds.ELSEWHERE
