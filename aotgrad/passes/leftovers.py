"""Removes leftovers of functionalization and the tape: calls that only copy or wrap a value.

detach(x)                             ->  x       a graph below autograd has no history to cut
clone(x), copy(new_empty(...), x)     ->  x       if x has the layout of the copy, and the difference is unobservable
slice_scatter(y, x) of all of y       ->  x       from `y[:] = x`
invoke_subgraph(g, name, mesh)[1]     ->  mesh    if g returns what it gets there, and that is no tensor
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.graph.ends import output_node, outputs_of
from aotgrad.graph.symbols import SYMBOLIC_NUMBERS
from aotgrad.passes import ops, rewrite
from aotgrad.passes.base import AnyGraph
from aotgrad.passes.memory import MemoryOwnership

aten = ops.aten


@dataclass(frozen=True)
class RemoveLeftovers:
    """Removes `detach`, and copies that cannot be told from their original."""

    name: str = "leftovers"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        memory = MemoryOwnership.of(graph)
        rewrite.replace(graph.module.graph, lambda node: original(node, memory))
        output = output_node(graph.module.graph)
        output.args = fx.map_arg(output.args, lambda arg: arg.args[0] if arg.target is aten.detach.default else arg)
        return graph


def original(node: fx.Node, memory: MemoryOwnership) -> Any:
    """The original of a copy, if it can replace the copy."""
    if node.target is aten.detach.default:
        return node.args[0]
    if op_table.is_getitem(node.target):
        return returned_argument(node)
    copied = COPIES.get(node.target)
    source = copied(node) if copied is not None else None
    if not isinstance(source, fx.Node) or not rewrite.alike(node, source):
        return None
    return source if memory.may_replace(node, source) else None


def returned_argument(item: fx.Node) -> Any:
    """The argument of a region that an item of its results is, if it is no tensor: a device mesh, which nothing can save."""
    region, index = ops.args_of(item)
    if not isinstance(region, fx.Node) or region.target is not torch.ops.higher_order.invoke_subgraph:
        return None
    if isinstance(item.meta.get("val"), (torch.Tensor, *SYMBOLIC_NUMBERS)):
        return None
    for module in ops.branches(region)[:1]:
        result, parameters = outputs_of(module.graph)[index], module.graph.find_nodes(op="placeholder")
        if result in parameters:
            return region.args[2:][parameters.index(result)]
    return None


def first_argument(node: fx.Node) -> Any:
    return node.args[0]


def second_argument(node: fx.Node) -> Any:
    return node.args[1]


COPIES: dict[Any, Callable[[fx.Node], Any]] = {
    aten.clone.default: first_argument,
    aten.copy.default: second_argument,
    aten.slice_scatter.default: second_argument,
}
"""The argument whose elements the result has, if sizes, strides and dtype are equal."""
