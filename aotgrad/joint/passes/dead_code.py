"""Removes what no output needs. Random ops stay: eager runs them, and the generator's state is visible. So do effects."""

from __future__ import annotations

import torch.fx as fx

from aotgrad.ir import JointGraph


def eliminate_dead_code(joint: JointGraph) -> JointGraph:
    """`joint` without nodes that neither an output nor an effect needs."""
    for node in reversed(joint.module.graph.nodes):
        if not node.users and not must_stay(node):
            joint.module.graph.erase_node(node)
    return joint


def must_stay(node: fx.Node) -> bool:
    """Placeholders, the output, and ops with an effect: a write, a check, or the random generator moved on."""
    return node.op in ("placeholder", "output") or node.is_impure()
