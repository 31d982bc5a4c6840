"""Unwraps effectful ops (print, assert, error checks): the order of nodes replaces the tokens.

with_effects(token, print, "x")        ->      print("x")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.fx as fx
from torch.fx.node import has_side_effect

from aotgrad import torch_compat
from aotgrad.passes.base import AnyGraph


@dataclass(frozen=True)
class UnwrapEffects:
    """`with_effects(token, op, *args)` becomes `op(*args)`, marked as having a side effect so that it stays."""

    name: str = "unwrap_effects"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        for node in list(graph.module.graph.nodes):
            if torch_compat.is_effect_wrapper(node.target):
                unwrap(graph.module.graph, node)
        return graph


def unwrap(graph: fx.Graph, node: fx.Node) -> None:
    arguments: Any = node.args
    _, op, *args = arguments
    has_side_effect(op)
    with graph.inserting_before(node):
        plain = graph.call_function(op, tuple(args), dict(node.kwargs))
    results = node.meta["val"][1:]
    plain.meta = {**node.meta, "val": results[0] if len(results) == 1 else results}
    for item in list(node.users):
        take_item(item, plain, len(results))
    graph.erase_node(node)


def take_item(item: fx.Node, plain: fx.Node, count: int) -> None:
    """Read an item of `(token, *results)` from the plain call instead; a token becomes None."""
    position = item.args[1]
    assert isinstance(position, int)
    if position and count > 1:
        item.args = (plain, position - 1)
    else:
        item.replace_all_uses_with(plain if position else None)  # pyright: ignore[reportArgumentType]
        item.graph.erase_node(item)
