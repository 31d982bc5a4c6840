"""The choice with the least cost: saves or recomputes each value that the backward needs.

In: a `JointAnalysis` and an `Objective`. Out: a `Decision`, for `split`.

    h = mm(x, w); s = sin(h); c = cos(s)   and the backward reads s and c in pointwise ops
    saves h, since mm is expensive, and recomputes sin and cos: one value is held instead of two

`policy` says what may be done with each value, `costs` and `fusion` what it costs, and `frontier` has the algorithm.
Without a budget, a byte held is worth a byte moved, or more where ops fuse, and only cheap ops are recomputed. With one,
every correct choice is allowed, and the fastest one within the budget is taken.

Minimum cuts for this purpose: H. He and S. Yu, "Transcending Runtime-Memory Tradeoffs in Checkpointing by being Fusion
Aware" (MLSys 2023), where recomputing a value is free or forbidden; with finite costs, the cut is still exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from aotgrad.errors import PartitionError
from aotgrad.graph import op_table
from aotgrad.partition import costs
from aotgrad.partition.calibration import flops_per_byte_of
from aotgrad.partition.decision import Decision, Objective, needed_by
from aotgrad.partition.frontier import Rate, Unsolvable
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.partition.items import Costed, CostModel, Items, is_free, read_by_backward
from aotgrad.partition.liveness import Profile, simulate
from aotgrad.partition.offload_frontier import AnyFrontier, OffloadFrontier, frontier_of
from aotgrad.partition.peak import PeakFrontier
from aotgrad.partition.policy import CAUTIOUS, FREE_HAND, Choice, Rules
from aotgrad.partition.problem import Solution

WORTH_OF_A_BYTE = costs.TIME_PER_BYTE
"""Without a budget, a byte held is worth the time of one byte moved."""

WORTH_OF_A_BYTE_IF_FUSED = costs.TIME_PER_BYTE * 3 // 2
"""Three bytes moved for two held take no more time in fused kernels, which often have what is counted as read."""


def min_cut(analysis: JointAnalysis, objective: Objective) -> Decision:
    """The values to save and to recompute, each with its reason.

    Raises:
        PartitionError: if the backward needs a value that can be neither saved nor recomputed.
    """
    costed = Costed.of(analysis, cost_model(analysis, objective))
    budget, in_peak = objective.memory_budget, objective.budget_of == "peak"
    if budget is None:
        plain = costed.items(CAUTIOUS)
        return _decision(plain, _solved(plain, without_budget))
    items = costed.items(FREE_HAND)
    within = _within_peak if in_peak else _within_saved
    if isinstance(budget, int):
        return _decision(items, _solved(items, lambda items: within(items, budget, warn=True)))
    limit = int(budget * _reference(costed.items(CAUTIOUS, offload=False), in_peak))
    return _decision(items, _solved(items, lambda items: within(items, limit, warn=False)))


def _reference(plain: Items, in_peak: bool) -> int:
    """The bytes that a fractional budget refers to."""
    solution = _solved(plain, without_budget)
    return simulated(plain, solution).peak if in_peak else solution.kept_bytes


def recompute_all(analysis: JointAnalysis, objective: Objective) -> Decision:
    """Save the fewest bytes possible, at any cost of recomputation."""
    return cut_at(analysis, objective, FREE_HAND, lambda frontier: frontier.smallest())


def cut_at(
    analysis: JointAnalysis, objective: Objective, rules: Rules, choose: Callable[[AnyFrontier], Solution]
) -> Decision:
    """The decision of the chosen solution of the problem under `rules`."""
    items = Costed.of(analysis, cost_model(analysis, objective)).items(rules)
    return _decision(items, _solved(items, lambda items: _expanded(items, choose)))


def _expanded(items: Items, choose: Callable[[AnyFrontier], Solution]) -> Solution:
    contraction = items.contraction
    return contraction.expand(choose(frontier_of(contraction.problem)))


def cost_model(analysis: JointAnalysis, objective: Objective) -> CostModel:
    given = objective.flops_per_byte
    measured = flops_per_byte_of(analysis.nodes) if isinstance(given, str) else given
    return CostModel(objective.fuses, measured, objective.host_bytes)


def without_budget(items: Items) -> Solution:
    """The balanced solution, with no more bytes than eager saves.

    Eager's formulas may be other ones, so its bytes may be out of reach. Those of all values in `analysis.crossing` are not.
    """
    limits = [costs.eager_bytes(items.analysis), costs.held_bytes_of(items.analysis, items.analysis.crossing)]
    rate = Rate(WORTH_OF_A_BYTE_IF_FUSED if items.model.fuses else WORTH_OF_A_BYTE, 1)

    def balanced(frontier: AnyFrontier) -> Solution:
        found = [frontier.at_most(rate, limit) for limit in sorted(limit for limit in limits if limit is not None)]
        return min(found, key=lambda solution: solution.kept_bytes)

    return _expanded(items, balanced)


def simulated(items: Items, solution: Solution) -> Profile:
    """The memory of both halves, without parameters and arguments."""
    program, number = items.program
    away = {number[node] for node in items.offloaded(solution)}
    return simulate(program, {number[items.nodes[k]] for k in solution.saved}, away)


def _solved(items: Items, choose: Callable[[Items], Solution]) -> Solution:
    try:
        return choose(items)
    except Unsolvable:
        raise _unsolvable(items) from None


def peak_frontiers(items: Items) -> list[PeakFrontier]:
    """The trade of peak memory for time: without offloading, and with the largest offer if there is one."""
    program, number = items.program
    contraction, numbers = items.contraction, [number[node] for node in items.nodes]
    away = {number[node] for node, verdict in zip(items.nodes, items.verdicts, strict=True) if verdict.leaves}
    problem = contraction.problem
    problems = [problem.without_link(), OffloadFrontier(problem).largest_offer] if problem.transfer else [problem]
    return [PeakFrontier(contraction, program, numbers, each, away) for each in problems]


def _within_saved(items: Items, limit: int, warn: bool) -> Solution:
    solution = _expanded(items, lambda frontier: frontier.within(limit))
    if warn and solution.kept_bytes > limit:
        _warn_unreachable(limit, solution.kept_bytes, "saved for the backward")
    return solution


def _within_peak(items: Items, limit: int, warn: bool) -> Solution:
    all_found = [frontier.within(limit) for frontier in peak_frontiers(items)]
    found = min(all_found, key=lambda each: (max(each.peak, limit), *each.rank))
    if warn and found.peak > limit:
        _warn_unreachable(limit, found.peak, "the peak that the simulation finds")
    return items.contraction.expand(found.solution)


def _warn_unreachable(limit: int, lowest: int, what: str) -> None:
    warnings.warn(
        f"memory_budget is {limit} bytes, but {lowest} bytes is the least that can be {what}; the plan takes {lowest}",
        stacklevel=2,
    )


# --- Reasons ---------------------------------------------------------------------------------------------------------


def _decision(items: Items, solution: Solution) -> Decision:
    analysis = items.analysis
    recomputed = {items.nodes[k]: _why_recomputed(items, k) for k in sorted(solution.recomputed)}
    direct = read_by_backward(analysis)
    indirect = analysis.reads(recomputed, analysis.forward | analysis.unclaimed)
    saved = {}
    for k in sorted(solution.saved):
        node = items.nodes[k]
        reader = direct.get(node, indirect.get(node))
        use = needed_by(reader) if node in direct else f"needed to recompute {reader} in the backward"
        saved[node] = f"{use}; {_why_offloaded(items, k) if k in solution.offloaded else _why_saved(items, k)}"
    runs_again = {node: why for node, why in recomputed.items() if node in analysis.forward and not is_free(analysis, node)}
    return Decision(saved, runs_again, offloaded=items.offloaded(solution))


def _why_offloaded(items: Items, k: int) -> str:
    return f"{items.verdicts[k].reason}, but waits on the host, where it takes {items.problem.held[k]} bytes"


def _why_saved(items: Items, k: int) -> str:
    node, verdict = items.nodes[k], items.verdicts[k]
    if op_table.is_symbolic_value(node):
        return "a number costs next to nothing to hold"
    if node in items.analysis.held:
        return f"{verdict.reason}, alive anyway"
    if verdict.choice is Choice.SAVE:
        return verdict.reason
    return f"{verdict.reason}, but costs more to recompute than to hold"


def _why_recomputed(items: Items, k: int) -> str:
    verdict, held = items.verdicts[k], items.problem.held[k]
    if verdict.choice is not Choice.EITHER or not held:
        return verdict.reason
    return f"{verdict.reason}, and holding it would take {held} bytes"


def _unsolvable(items: Items) -> PartitionError:
    stuck = [(n, v) for n, v in zip(items.nodes, items.verdicts, strict=True) if v.choice is Choice.NEITHER]
    names = ", ".join(f"{node.name} ({verdict.reason})" for node, verdict in stuck)
    return PartitionError(f"the backward needs a value that can be neither saved nor recomputed: {names}")
