"""Removes what no output needs. Random ops stay: eager runs them, and the generator's state is visible. So do effects.

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
    """Placeholders, the output, and ops with an effect: a write, a check, or the random generator moved on."""
    return node.op in ("placeholder", "output") or ops.node_has_effect(node)
