"""Waits for a collective right before its result is read, so that it overlaps with the work in between.

r = all_reduce(g); w = wait_tensor(r); h = mm(a, b); y = mul(w, 2)     ->     r; h; w; y

A result that is only returned is waited for at the end of the half: the caller gets a plain tensor, which nothing waits for
later. Collectives keep their places, since all ranks must start them in the same order, and since one that starts earlier
holds more memory (see the option `collectives_first`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.graph.ends import output_node
from aotgrad.passes.base import AnyGraph


@dataclass(frozen=True)
class LateWaits:
    """Moves each wait to the first reader of its result."""

    name: str = "late_waits"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        output = output_node(graph.module.graph)
        for node in reversed(list(graph.module.graph.nodes)):
            awaits_collective = op_table.is_wait(node.target) and op_table.communicates(node.target)
            if awaits_collective and is_only_awaited(node.all_input_nodes[0]):
                min(node.users, default=output).prepend(node)
        return graph


def is_only_awaited(result: fx.Node) -> bool:
    """Whether a node is the result of a message, in memory of its own, that nothing but waits reads, or of a wait."""
    if op_table.is_wait(result.target):
        return is_only_awaited(result.all_input_nodes[0])
    start = result.all_input_nodes[0] if op_table.is_getitem(result.target) else result
    is_functional = op_table.starts_message(start.target) and not op_table.writes_first_argument(start.target)
    return is_functional and all(
        op_table.is_wait(user.target) for user in result.users if not op_table.is_getitem(user.target)
    )
