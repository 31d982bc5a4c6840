"""Checks that a graph is functional: no op writes to its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from aotgrad.errors import PassError
from aotgrad.graph import op_table
from aotgrad.passes.base import AnyGraph


@dataclass(frozen=True)
class CheckFunctional:
    """Raises if an op of the graph writes to its arguments; changes nothing."""

    name: str = "functional"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        """`graph` itself.

        Raises:
            PassError: names the node and its op.
        """
        for node in graph.module.graph.nodes:
            if op_table.writes(node.target):
                raise PassError(
                    f"node {node.name} ({node.target}) writes to its arguments; the graph must be functional here"
                )
        return graph
