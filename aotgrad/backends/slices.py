"""Many slices of one tensor -> one `unbind` or `split`, in the graphs of the `eager` backend: one call in place of many.

    a = select(x, 0, 0);    b = select(x, 0, 1)         becomes         a, b = unbind(x, 0)
    a = slice(x, 0, 0, 3);  b = slice(x, 0, 3, 8)       becomes         a, b = split(x, [3, 5], 0)

The backwards of `stack` and `cat` are such slices. They are views of the same memory as before.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph.copies import copy_graph

aten = torch.ops.aten

FEWEST = 4
"""A call that makes several views costs more than one that makes one."""


@dataclass(frozen=True)
class Slice:
    """A node that takes `size` elements of a dimension, from `start` on; `size` is `None` if the dimension goes away."""

    node: fx.Node
    source: fx.Node
    dim: int
    start: int
    size: int | None

    @classmethod
    def of(cls, node: fx.Node) -> Slice | None:
        """What a node takes; `None` if it is another node, or its place is not known."""
        if node.target not in (aten.select.int, aten.slice.Tensor) or len(node.args) < 2:
            return None
        arguments: Any = node.args
        source, dim, *place = arguments
        if "val" not in source.meta:
            return None
        length = source.meta["val"].shape[dim]
        if type(length) is not int or any(type(each) is not int for each in place if each is not None):
            return None
        if node.target is aten.select.int:
            return cls(node, source, dim, place[0] % length, None) if length else None
        start, end, step = slice(*place, *(0, sys.maxsize, 1)[len(place) :]).indices(length)
        return cls(node, source, dim, start, end - start) if step == 1 and end > start else None


def take_apart_at_once(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph that takes each tensor apart by one op; the module itself if there are no such tensors."""
    groups = list(complete_groups(module.graph))
    if not groups:
        return module
    copies: dict[fx.Node, fx.Node] = {}
    graph = copy_graph(module.graph, copies)
    for group in groups:
        replace_group(graph, group, copies)
    return fx.GraphModule(module, graph)


def complete_groups(graph: fx.Graph) -> Iterator[Sequence[Slice]]:
    """The slices that divide a tensor along a dimension, in its order."""
    groups: dict[tuple[Any, ...], list[Slice]] = {}
    for found in filter(None, map(Slice.of, graph.nodes)):
        groups.setdefault((found.source, found.dim, found.size is None), []).append(found)
    for (source, dim, _), group in groups.items():
        group.sort(key=lambda each: each.start)
        ends = [0, *(each.start + (1 if each.size is None else each.size) for each in group)]
        divides = [each.start for each in group] == ends[:-1] and ends[-1] == source.meta["val"].shape[dim]
        if len(group) >= FEWEST and divides:
            yield group


def replace_group(graph: fx.Graph, group: Sequence[Slice], copies: dict[fx.Node, fx.Node]) -> None:
    """Take the source of a group apart where the first of its slices was."""
    source, dim = copies[group[0].source], group[0].dim
    first = next(node for node in graph.nodes if node in {copies[each.node] for each in group})
    sizes = [each.size for each in group if each.size is not None]
    with graph.inserting_before(first):
        all_of = aten.split_with_sizes.default if sizes else aten.unbind.int
        parts = graph.call_function(all_of, (source, sizes, dim) if sizes else (source, dim))
        parts.meta["val"] = [each.node.meta["val"] for each in group]
        taken = [graph.call_function(operator.getitem, (parts, k)) for k in range(len(group))]
    for each, part in zip(group, taken, strict=True):
        part.meta = dict(each.node.meta)
        copies[each.node].replace_all_uses_with(part)
        graph.erase_node(copies[each.node])
        copies[each.node] = part
