"""Merges random ops that draw the same numbers: they have the same `meta["draw"]`.

mask = bernoulli(x); again = bernoulli(x); y = x * again     ->     mask = bernoulli(x); y = x * mask

The trace of a checkpointed region has such ops. Equal calls are already merged (`common_subexpressions`). An op that reads
only the size of its argument is replaced by the first op. Other ops run from the generator's state before the first op:

mask = bernoulli(x); again = bernoulli(z)     ->     state, mask = draw_and_record(bernoulli, x)
                                                     again = draw_again(state, bernoulli, z)
"""

from __future__ import annotations

from dataclasses import dataclass

from aotgrad.graph.draws import RepeatedDraw
from aotgrad.passes.base import AnyGraph


@dataclass(frozen=True)
class RemoveRepeatedDraws:
    """Keeps one op for each draw. Other ops are replaced by it or start from its state."""

    name: str = "repeated draws"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        """`graph` without ops that repeat a draw.

        Raises:
            CaptureError: an op uses the same state to draw something else.
        """
        drawn: dict[int, RepeatedDraw] = {}
        for node in graph.module.graph.nodes:
            number = node.meta.get("draw")
            if number is None or (first := drawn.setdefault(number, RepeatedDraw(node))).node is node:
                continue
            if node.users:
                first.repeat(node)
            graph.module.graph.erase_node(node)
        return graph
