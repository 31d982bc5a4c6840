"""Memory that an op needs besides its results while it runs.

In: a node with traced values. Out: bytes, 0 for most ops.

    convolution(x, w) of float32 on a CPU      copies of x and w, then one of the result

On a CPU, oneDNN computes a convolution in its own layouts, in blocks of channels: it copies the inputs, computes, and copies
the result back. The gradients take two convolutions; the result of the first is held during the second. Inputs with few
channels (images) are not copied. The figures come from torch's memory profiler (tests/partition/test_workspace.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.partition.costs import bytes_written, extent_bytes

FEW_CHANNELS = 3  # of an input that is not copied
BLOCK = 16  # channels in a block; half as many where vectors are shorter
COPIES_OF_REDUCED = {
    "aten.binary_cross_entropy": 1,
    "aten.huber_loss": 1,
    "aten.logsumexp": 1,
    "aten.mse_loss": 2,
    "aten.smooth_l1_loss": 2,
    "aten.soft_margin_loss": 1,
}
"""Tensors like the input that a loss holds before it reduces them."""

SMALL_BATCH = 16  # with smaller batches, convolutions with 1x1 kernels are matrix products on one thread


def bytes_needed(node: fx.Node) -> int:
    """Bytes that running the op takes besides its result. Items of a tuple count: they are no results until taken out."""
    name = op_table.op_name(node.target)
    items = bytes_written(node) if op_table.is_tuple_value(node) else 0
    if name == "aten.convolution":
        return _of_convolution(node)
    if name in COPIES_OF_REDUCED:
        return _of_reduction(node, COPIES_OF_REDUCED[name])
    return max(items, _of_gradients(node)) if name == "aten.convolution_backward" else items


def _of_reduction(node: fx.Node, copies: int) -> int:
    (x,) = _traced_tensors(node.args[:1])
    return copies * extent_bytes(x) if bytes_written(node) < extent_bytes(x) else 0


def _of_convolution(node: fx.Node) -> int:
    x, weight = _traced_tensors(node.args[:2])
    stride, dilation, transposed = node.args[3], node.args[5], node.args[6]
    if not _is_blocked(x, weight, stride, dilation):
        return 0
    result = extent_bytes(node.meta["val"])
    blocked = _blocked(node.meta["val"])
    return max(_copy(x) + _blocked(weight, 0, 1) + blocked - result, blocked + (result if transposed else 0))


def _of_gradients(node: fx.Node) -> int:
    arguments: Any = node.args
    gradient, x, weight = _traced_tensors(arguments[:3])
    stride, dilation, (of_input, of_weight, _) = arguments[4], arguments[6], arguments[10]
    if not _is_blocked(x, weight, stride, dilation):
        return 0
    copies = _blocked(gradient) + _blocked(weight, 0, 1)
    first = extent_bytes(x) if of_input else 0
    of_input_bytes = max(copies + _blocked(x), first + _blocked(x)) if of_input else 0
    return max(of_input_bytes, first + copies + _copy(x) if of_weight else 0)


def _traced_tensors(args: tuple[Any, ...]) -> list[torch.Tensor]:
    return [arg.meta["val"] for arg in args]


def _copy(x: torch.Tensor) -> int:
    return _blocked(x) if x.shape[1] > FEW_CHANNELS else 0


def _blocked(value: torch.Tensor, *channels: int) -> int:
    """Bytes of a copy whose channels (by default dimension 1) are padded to whole blocks."""
    size = value.element_size()
    for dim, extent in enumerate(value.shape):
        size *= -(-extent // BLOCK) * BLOCK if dim in (channels or (1,)) else extent
    return size


def _is_blocked(x: torch.Tensor, weight: torch.Tensor, stride: Any, dilation: Any) -> bool:
    """Whether oneDNN computes the convolution, in blocks."""
    if x.device.type != "cpu" or x.dtype is not torch.float32 or not torch.backends.mkldnn.is_available():
        return False
    if torch_compat.has_symbolic_shape(x) or torch_compat.has_symbolic_shape(weight) or not x.is_contiguous():
        return False
    moves = any(step != 1 for step in (*stride, *dilation))
    return moves or x.shape[0] >= SMALL_BATCH or any(size != 1 for size in weight.shape[2:])
