"""Computes equal calls once.

    a = cos(x); b = cos(x); return (a * b,)      ->      a = cos(x); return (a * a,)

`graph/equality.py` says which calls are equal. Not merged are random ops, unless they draw the same numbers
(`meta["draw"]`), ops that write or have effects, uninitialized memory, outputs (see `memory`), and nodes that selective
checkpointing treats differently. Nor are ops that make a new symbolic size, and what they read: a fake tensor has one such
size, so the second size would get the name of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.graph.equality import call_key
from aotgrad.graph.node_tags import recompute_policy
from aotgrad.passes import ops, rewrite
from aotgrad.passes.base import AnyGraph
from aotgrad.passes.memory import MemoryOwnership


@dataclass(frozen=True)
class CommonSubexpressionElimination:
    """Computes equal calls once, by value numbering. `merges`: which calls an earlier one may replace."""

    name: str = "cse"
    merges: Callable[[fx.Node], bool] = field(default=lambda node: True, repr=False)

    def apply(self, graph: AnyGraph) -> AnyGraph:
        memory = MemoryOwnership.of(graph)
        first: dict[Hashable, fx.Node] = {}

        def visit(node: fx.Node) -> fx.Node | None:
            key = expression(node)
            earlier = first.setdefault(key, node) if key is not None else node
            return earlier if earlier is not node and self.merges(node) and memory.may_replace(node, earlier) else None

        rewrite.replace(graph.module.graph, visit)
        return graph


def expression(node: fx.Node) -> Hashable | None:
    """A key that is equal for nodes that compute the same; `None` for a node that equals no other."""
    draw = node.meta.get("draw")
    if (draw is None and not ops.is_pure(node)) or gives_size(node):
        return None
    call = call_key(node)
    return None if call is None else (call, recompute_policy(node), draw)


def gives_size(node: fx.Node) -> bool:
    """Whether an op makes a new symbolic size from the result."""
    return any(
        gives_size(user) if op_table.is_getitem(user.target) else ops.has_size_of_its_own(user) for user in node.users
    )
