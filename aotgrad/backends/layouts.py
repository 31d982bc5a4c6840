"""Copies of results whose layout a backend's passes have changed, so that they have the strides of the trace.

    with keep_output_layouts(graph):
        run_passes(graph)       # one folds `zeros(2, 3).cumsum(0)` to one row, expanded

The expanded row is then copied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.graphs import inserting_before_writes, replace_outputs
from aotgrad.graph.ends import output_node, outputs_of

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides, as hints."""


AS_TRACED = "aotgrad_layouts"
"""The key under which an output node stores the traced layouts of outputs, by position."""


def note_layouts(graph: fx.Graph, positions: Iterable[int]) -> None:
    """Store the current layouts of these outputs for `keep_output_layouts`, whatever becomes of the inputs."""
    end = output_node(graph)
    outputs = outputs_of(graph)
    end.meta[AS_TRACED] = {k: layout_of(outputs[k]) for k in positions}


@contextlib.contextmanager
def keep_output_layouts(graph: fx.Graph) -> Iterator[None]:
    """Run passes inside; then copy dense outputs whose layout has changed."""
    end = output_node(graph)
    traced: dict[int, Layout | None] = end.meta.get(AS_TRACED, {})
    layouts = [traced.get(k) or layout_of(output) for k, output in enumerate(outputs_of(graph))]
    yield
    outputs = list(outputs_of(graph))
    end = output_node(graph)
    for k, (node, layout) in enumerate(zip(outputs, layouts, strict=True)):
        if layout is not None and "val" in node.meta and differ(*layout, torch_compat.hints(node.meta["val"].stride())):
            with inserting_before_writes(graph):
                outputs[k] = copy_in_layout(node, layout)
                torch_compat.tell_output_stride(end, k, outputs[k].meta["val"].stride())
    replace_outputs(graph, outputs)


def layout_of(output: Any) -> Layout | None:
    """The layout of a dense output; `None` for others, and for data-dependent sizes."""
    value = output.meta.get("val") if isinstance(output, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    layout = torch_compat.hints(value.size()), torch_compat.hints(value.stride())
    if any(number is None for numbers in layout for number in numbers):
        return None
    return layout if torch_compat.is_dense_layout(*layout) else None


def copy_in_layout(node: fx.Node, layout: Layout) -> fx.Node:
    """A dense copy in the order of dimensions that `layout` has."""
    _, strides = layout
    order, back = order_in_memory(strides)
    ordered = call_op(torch.ops.aten.permute.default, node, order)
    copy = call_op(torch.ops.aten.clone.default, ordered, memory_format=torch.contiguous_format)
    return call_op(torch.ops.aten.permute.default, copy, back)


def in_order_of(result: torch.Tensor, strides: Sequence[Any]) -> torch.Tensor:
    """A result with its dimensions in the order in memory of a dense tensor with these strides."""
    strides = torch_compat.hints(strides)
    if strides == torch_compat.hints(result.stride()) or None in strides:
        return result
    order, back = order_in_memory(strides)
    return result.permute(order).contiguous().permute(back)


def order_in_memory(strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """The dimensions from the outermost to the innermost one in memory, and the permutation that undoes this order.

    >>> order_in_memory((1, 6, 2))
    ([1, 2, 0], [2, 0, 1])
    """
    order = sorted(range(len(strides)), key=lambda dim: -strides[dim])
    return order, sorted(range(len(order)), key=order.__getitem__)


def call_op(op: torch._ops.OpOverload, node: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
    """A new node that calls `op` on another node."""
    result = node.graph.call_function(op, (node, *args), kwargs)
    result.meta = {**node.meta, "val": op(node.meta["val"], *args, **kwargs)}
    return result


def differ(size: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether strides differ in a dimension of size above 1.

    >>> differ((4, 1), (1, 1), (1, 4))
    False
    """
    return any(n != 1 and a != b for n, a, b in zip(size, one, other, strict=True))
