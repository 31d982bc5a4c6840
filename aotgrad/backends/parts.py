"""Hides from Inductor's passes that a result is only a part of a value, so that the result keeps the memory of the whole.

    y = zeros(8); view = y[4:]; y.as_strided_((2,), (1,)); return y, view      the graph returns as_strided(zeros(8), ...)

The other results are made as views of the returned memory, and reach beyond the part. The passes would fold a part of a
constant to a smaller constant, `full(2)`. They see a graph that returns the whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.graphs import inserting_before_writes, replace_outputs
from aotgrad.graph.ends import outputs_of
from aotgrad.graph.memory_owners import memory_owner, viewed_node


@contextlib.contextmanager
def keep_memory_of_parts(graph: fx.Graph, results: int) -> Iterator[None]:
    """Run passes inside; meanwhile the graph returns the whole in place of each of the first `results` outputs."""
    outputs = list(outputs_of(graph))
    parts = {k: Part.of(node) for k, node in enumerate(outputs[:results]) if is_part(node)}
    numbers = list(dict.fromkeys(number for part in parts.values() for view in part.views for number in view.numbers))
    wholes = [parts[k].whole if k in parts else node for k, node in enumerate(outputs)]
    replace_outputs(graph, wholes + numbers)
    yield
    after = list(outputs_of(graph))
    known = dict(zip(numbers, after[len(outputs) :], strict=True))
    with inserting_before_writes(graph):
        for k, part in parts.items():
            after[k] = part.repeated(after[k], known)
    replace_outputs(graph, after[: len(outputs)])


@dataclass(frozen=True)
class ViewOfPart:
    """A call of a view op, which the passes may change or erase.

    `of`: what it views. `numbers`: the symbolic numbers that it depends on.
    """

    op: Any
    of: fx.Node
    numbers: tuple[fx.Node, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    meta: dict[str, Any]

    @classmethod
    def at(cls, node: fx.Node, of: fx.Node) -> ViewOfPart:
        numbers = tuple(each for each in node.all_input_nodes if each is not of)
        return cls(node.target, of, numbers, node.args, dict(node.kwargs), dict(node.meta))

    def repeated(self, of: fx.Node, known: Mapping[fx.Node, Any]) -> fx.Node:
        """The same view of another value, with the current nodes of symbolic numbers."""
        args, kwargs = fx.map_arg((self.args, self.kwargs), {**known, self.of: of}.__getitem__)
        result = of.graph.call_function(self.op, args, kwargs)
        result.meta = dict(self.meta)
        return result


@dataclass(frozen=True)
class Part:
    """The value that owns the memory of a result, and the views from it to the result, in order."""

    whole: fx.Node
    views: tuple[ViewOfPart, ...]

    @classmethod
    def of(cls, node: fx.Node) -> Part:
        views: list[ViewOfPart] = []
        while (viewed := viewed_node(node)) is not None:
            views.append(ViewOfPart.at(node, viewed))
            node = viewed
        return cls(node, tuple(views[::-1]))

    def repeated(self, whole: fx.Node, known: Mapping[fx.Node, Any]) -> fx.Node:
        """The same part of another whole."""
        for view in self.views:
            whole = view.repeated(whole, known)
        return whole


def is_part(output: Any) -> bool:
    """Whether an output is a view of a computed value that has more memory than the view shows."""
    value = output.meta.get("val") if isinstance(output, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or viewed_node(output) is None:
        return False
    (room,) = torch_compat.hints([value.untyped_storage().nbytes()])
    (shown,) = torch_compat.hints([value.numel() * value.element_size()])
    is_smaller = room is None or shown is None or shown < room
    return is_smaller and memory_owner(output).op == "call_function"
