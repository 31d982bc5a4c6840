"""The trade of memory for time of one joint graph, as numbers for a person to choose from.

In: a `JointGraph` and an `Objective`, whose budget is ignored. Out: the point without a budget, and the corners of the
front, from the most bytes saved to the fewest.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotgrad.ir import JointGraph
from aotgrad.partition import costs
from aotgrad.partition.decision import Objective
from aotgrad.partition.frontier import Frontier
from aotgrad.partition.graphs import analyze_joint
from aotgrad.partition.items import Costed, Items
from aotgrad.partition.liveness import Simulator
from aotgrad.partition.min_cut import cost_model, without_budget
from aotgrad.partition.policy import CAUTIOUS, FREE_HAND
from aotgrad.partition.problem import Solution
from aotgrad.partition.program import program_of


@dataclass(frozen=True)
class FrontierPoint:
    """One choice: bytes saved for the backward, bytes at the simulated peak, and bytes of traffic to recompute values."""

    saved_bytes: int
    peak_bytes: int
    recompute_bytes: int


def frontier_points(joint: JointGraph, objective: Objective) -> tuple[FrontierPoint, list[FrontierPoint]]:
    """The point without a budget, and the corners of the front."""
    analysis = analyze_joint(joint)
    costed = Costed.of(analysis, cost_model(analysis, objective))
    program, number = program_of(analysis, objective.fuses)
    simulator = Simulator(program)

    def point(items: Items, solution: Solution) -> FrontierPoint:
        profile = simulator.run({number[items.nodes[k]] for k in solution.saved})
        return FrontierPoint(solution.kept_bytes, profile.peak, solution.time // costs.TIME_PER_BYTE)

    plain, items = costed.items(CAUTIOUS), costed.items(FREE_HAND)
    contraction = items.contraction
    corners = [contraction.expand(corner) for corner in reversed(Frontier(contraction.problem).corners())]
    return point(plain, without_budget(plain)), [point(items, corner) for corner in corners]
