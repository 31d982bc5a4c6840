"""The trade of memory for time of one joint graph, as numbers for a person to choose from.

In: a `JointGraph` and an `Objective`, whose budget is ignored. Out: the point without a budget, and the corners of the
front, from the most bytes saved to the fewest. If values may be offloaded, each point comes with the traffic without that,
and with a lower bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aotgrad.ir import JointGraph
from aotgrad.partition import costs
from aotgrad.partition.decision import Objective
from aotgrad.partition.graphs import analyze_joint
from aotgrad.partition.items import Costed, Items
from aotgrad.partition.liveness import Simulator
from aotgrad.partition.min_cut import cost_model, without_budget
from aotgrad.partition.offload_frontier import OffloadFrontier, frontier_of
from aotgrad.partition.policy import CAUTIOUS, FREE_HAND
from aotgrad.partition.problem import Solution


@dataclass(frozen=True)
class Comparison:
    """A choice with offloading, beside the best without.

    Attributes:
        host_bytes: on the host.
        alone_bytes: traffic of recomputing alone with as many bytes saved; infinite if that does not suffice.
        bound_bytes: a lower bound of the traffic with offloading.
    """

    host_bytes: int
    alone_bytes: float
    bound_bytes: float


@dataclass(frozen=True)
class FrontierPoint:
    """One choice: bytes saved on the device for the backward, bytes at the simulated peak, and bytes of traffic to recompute
    values. Where the device waits for the link, that counts as the traffic that takes as long.
    """

    saved_bytes: int
    peak_bytes: int
    recompute_bytes: int
    offloading: Comparison | None = None


def frontier_points(joint: JointGraph, objective: Objective) -> tuple[FrontierPoint, list[FrontierPoint]]:
    """The point without a budget, and the corners of the front."""
    analysis = analyze_joint(joint)
    costed = Costed.of(analysis, cost_model(analysis, objective))
    plain, items = costed.items(CAUTIOUS), costed.items(FREE_HAND)
    simulator, number = Simulator(items.program[0]), items.program[1]
    contraction = items.contraction
    frontier = frontier_of(contraction.problem)

    def point(items: Items, solution: Solution) -> FrontierPoint:
        away = {number[node] for node in items.offloaded(solution)}
        profile = simulator.run({number[items.nodes[k]] for k in solution.saved}, away)
        beside = compared_with_plain(frontier, items, solution) if isinstance(frontier, OffloadFrontier) else None
        return FrontierPoint(solution.kept_bytes, profile.peak, solution.time // costs.TIME_PER_BYTE, beside)

    corners = [contraction.expand(corner) for corner in reversed(frontier.corners())]
    return point(plain, without_budget(plain)), [point(items, corner) for corner in corners]


def compared_with_plain(frontier: OffloadFrontier, items: Items, solution: Solution) -> Comparison:
    """A solution beside those of `frontier` with as many bytes."""
    limit = solution.kept_bytes
    alone = frontier.plain.within(limit)
    time = alone.time if alone.kept_bytes <= limit else math.inf
    host_bytes = sum(items.problem.held[k] for k in solution.offloaded)
    return Comparison(host_bytes, time / costs.TIME_PER_BYTE, frontier.bound(limit) / costs.TIME_PER_BYTE)
