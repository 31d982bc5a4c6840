"""Removes nodes that no output needs. Effects and random ops stay: the state of the generator is visible.

exp = exp(primals_1); sin = sin(primals_1); return (sin,)      ->      sin = sin(primals_1); return (sin,)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.fx as fx

from aotgrad.passes import ops
from aotgrad.passes.base import AnyGraph


@dataclass(frozen=True)
class DeadCodeElimination:
    """Removes nodes that neither an output nor an effect needs."""

    name: str = "dce"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        for node in reversed(graph.module.graph.nodes):
            if not node.users and not must_stay(node):
                graph.module.graph.erase_node(node)
        return graph


def must_stay(node: fx.Node) -> bool:
    """Whether a node is a placeholder, the output, or an op with an effect: a write, a check, or a random draw."""
    return node.op in ("placeholder", "output") or ops.node_has_effect(node)
