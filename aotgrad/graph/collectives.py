"""When a collective runs that other ranks take part in."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch.fx as fx

from aotgrad.slots import Gradient, Tangent


@dataclass(frozen=True)
class RunsBetween:
    """When a collective of the backward runs: in eager, its autograd node lies on paths from tangents to gradients.

    It is the `meta["runs_between"]` of a collective and of its wait. Other ranks may need the result, so whether this rank
    reads it plays no part.
    """

    tangents: frozenset[Tangent]
    gradients: frozenset[Gradient]

    def runs(self, defined: Collection[Tangent], wanted: Collection[Gradient], all_wanted: bool) -> bool:
        """Whether it runs for these defined tangents and wanted gradients. One that leads to none runs if all are wanted."""
        return not self.tangents.isdisjoint(defined) and (all_wanted or not self.gradients.isdisjoint(wanted))


def communicating(graph: fx.Graph) -> Iterator[tuple[fx.Node, RunsBetween]]:
    """The collectives of the graph and their waits, and when they run."""
    return ((node, node.meta["runs_between"]) for node in graph.nodes if "runs_between" in node.meta)
