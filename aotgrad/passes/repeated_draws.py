"""Removes random ops that would draw numbers which another one has drawn: both have one number in `meta["draw"]`.

mask = bernoulli(x); again = bernoulli(x); y = x * again     ->     mask = bernoulli(x); y = x * mask

A trace of a checkpointed region has them. Equal calls are one by now, see `common_subexpressions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aotgrad.errors import CaptureError
from aotgrad.passes.base import AnyGraph


@dataclass(frozen=True)
class RemoveRepeatedDraws:
    """Leaves one op for each draw."""

    name: str = "repeated draws"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        """`graph` without the others.

        Raises:
            CaptureError: one draws the same numbers for another argument.
        """
        drawn: dict[int, Any] = {}
        for node in graph.module.graph.nodes:
            number = node.meta.get("draw")
            if number is None or drawn.setdefault(number, node) is node:
                continue
            if node.users:
                raise CaptureError(
                    f"{node.target} runs again, from the state that the random generator had before, for another argument "
                    "(torch.utils.checkpoint around dropout of a tensor that was changed since?); use torch.compile, which "
                    "keeps such a region as one op, or checkpoint outside of the compiled function"
                )
            graph.module.graph.erase_node(node)
        return graph
