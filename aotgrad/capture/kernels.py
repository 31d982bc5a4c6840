"""Refuses wrapped Triton kernels that a graph would not run as eager does.

In: a joint graph. Raises, or returns nothing.

Torch's functional form of a kernel call clones each tensor that the kernel writes to. A write through one argument is then
invisible through another argument in the same memory, and of two results in one memory the later one wins.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.capture.recorder import printed_line
from aotgrad.errors import CaptureError
from aotgrad.graph.strided_overlap import ByteLayout, overlap

WRAPPED = "triton_kernel_wrapper_functional"
"""The name of torch's operator that calls a kernel and returns copies of the tensors that it wrote to."""


def reject_kernels_in_shared_memory(graph: fx.Graph) -> None:
    """Raise if a kernel writes to an argument that shares elements with another argument.

    A tensor may be passed twice, as for a kernel that works in place, if the kernel writes to one of the two.

    Raises:
        CaptureError: names the line and both arguments.
    """
    for node in graph.nodes:
        if torch_compat.higher_order_name(node.target) == WRAPPED:
            reject_shared_arguments(node)


def reject_shared_arguments(call: fx.Node) -> None:
    """See `reject_kernels_in_shared_memory`."""
    arguments: Mapping[str, Any] = dict(call.kwargs)
    written = frozenset(arguments["tensors_to_clone"])
    tensors = {name: value.meta["val"] for name, value in arguments["kwargs"].items() if is_tensor(value)}
    for (name, tensor), (other, second) in itertools.combinations(tensors.items(), 2):
        if lose_sharing(tensor, second, {name, other} & written):
            line = printed_line(call.meta.get("stack_trace", ""))
            raise CaptureError(
                f"a Triton kernel gets {name!r} and {other!r}, which share memory, and changes it, at {line}. "
                "Pass a clone() of one, or do this outside of the compiled function"
            )


def is_tensor(value: object) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def lose_sharing(tensor: torch.Tensor, other: torch.Tensor, written: Collection[str]) -> bool:
    """Whether two arguments share elements, and cloning the `written` ones would lose that."""
    if not written or torch_compat.storage_key(tensor) != torch_compat.storage_key(other):
        return False
    if torch_compat.has_symbolic_shape(tensor) or torch_compat.has_symbolic_shape(other):
        return tensor is not other or len(written) == 2
    layout, second = ByteLayout.of(tensor), ByteLayout.of(other)
    return overlap(layout, second) if layout != second else len(written) == 2
