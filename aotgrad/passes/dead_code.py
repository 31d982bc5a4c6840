"""Removes nodes that no output needs. Effects and random ops stay: the state of the generator is visible.

exp = exp(primals_1); sin = sin(primals_1); return (sin,)      ->      sin = sin(primals_1); return (sin,)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.fx as fx

from aotgrad.passes import ops
from aotgrad.passes.base import AnyGraph


@dataclass(frozen=True)
class DeadCodeElimination:
    """Removes nodes that neither an output nor an effect needs."""

    name: str = "dce"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        erase_unused(graph.module.graph, must_stay)
        return graph


def erase_unused(graph: fx.Graph, stays: Callable[[fx.Node], bool]) -> None:
    """Erase the nodes without users, those behind them first, except those for which `stays` holds."""
    for node in reversed(graph.nodes):
        if not node.users and not stays(node):
            graph.erase_node(node)


def must_stay(node: fx.Node) -> bool:
    """Whether a node is a placeholder, the output, or an op with an effect: a write, a check, or a random draw."""
    return node.op in ("placeholder", "output") or ops.node_has_effect(node)
