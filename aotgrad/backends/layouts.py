"""Results that lie in memory as traced, whatever a backend's passes have put in their place.

    with output_layouts_kept(graph):
        run_passes(graph)       # one computes `zeros(2, 3).cumsum(0)` at once, as one row that is expanded

The expanded row is copied, so that the result has the strides of the trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.graphs import outputs_of, replace_outputs

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and strides, as hints."""


AS_TRACED = "aotgrad_layouts"
"""Where an output node says how outputs lay in the trace, by position."""


def keep_as_traced(graph: fx.Graph, positions: Iterable[int]) -> None:
    """Have `output_layouts_kept` keep how these outputs lie now, whatever becomes of the inputs."""
    (end,) = graph.find_nodes(op="output")
    outputs = outputs_of(graph)
    end.meta[AS_TRACED] = {k: layout_of(outputs[k]) for k in positions}


@contextlib.contextmanager
def output_layouts_kept(graph: fx.Graph) -> Iterator[None]:
    """After passes that run inside, dense outputs are copied that lie otherwise."""
    (end,) = graph.find_nodes(op="output")
    traced: dict[int, Layout | None] = end.meta.get(AS_TRACED, {})
    layouts = [traced.get(k) or layout_of(output) for k, output in enumerate(outputs_of(graph))]
    yield
    outputs = list(outputs_of(graph))
    (end,) = graph.find_nodes(op="output")
    for k, (node, layout) in enumerate(zip(outputs, layouts, strict=True)):
        if layout is not None and "val" in node.meta and differ(*layout, torch_compat.hints(node.meta["val"].stride())):
            with graph.inserting_before(end):
                outputs[k] = laid_out(node, layout)
                torch_compat.tell_output_stride(end, k, outputs[k].meta["val"].stride())
    replace_outputs(graph, outputs)


def layout_of(output: Any) -> Layout | None:
    value = output.meta.get("val") if isinstance(output, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    layout = torch_compat.hints(value.size()), torch_compat.hints(value.stride())
    if any(number is None for numbers in layout for number in numbers):  # as many elements as values say
        return None
    return layout if torch_compat.is_dense_layout(*layout) else None


def laid_out(node: fx.Node, layout: Layout) -> fx.Node:
    """A dense copy: contiguous when its dimensions are ordered by stride."""
    _, strides = layout
    order = sorted(range(len(strides)), key=lambda dim: -strides[dim])
    back = sorted(range(len(order)), key=order.__getitem__)
    ordered = called(torch.ops.aten.permute.default, node, order)
    copy = called(torch.ops.aten.clone.default, ordered, memory_format=torch.contiguous_format)
    return called(torch.ops.aten.permute.default, copy, back)


def called(op: torch._ops.OpOverload, node: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
    """A node that calls `op` of another node."""
    result = node.graph.call_function(op, (node, *args), kwargs)
    result.meta = {**node.meta, "val": op(node.meta["val"], *args, **kwargs)}
    return result


def differ(size: Sequence[int], one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether strides differ in a dimension that has more than one position.

    >>> differ((4, 1), (1, 1), (1, 4))
    False
    """
    return any(n != 1 and a != b for n, a, b in zip(size, one, other, strict=True))
