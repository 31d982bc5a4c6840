"""The choice with the least cost: for each value that the backward needs, save it, or run it again from saved ones.

In: a `JointAnalysis` and an `Objective`. Out: a `Decision`, for `split`.

    h = mm(x, w); s = sin(h); c = cos(s)   and the backward reads s and c in pointwise ops
    saves h, since mm is expensive, and runs sin and cos again: one value is held instead of two

What may be done with each value is in `policy`, what it costs in `costs` and `fusion`, the algorithm in `frontier`.
Without a budget a byte held is worth a byte moved, and only cheap ops run again. With a budget anything may that is
correct, and the fastest choice within the budget is taken.

Minimum cuts for this purpose: H. He and S. Yu, "Transcending Runtime-Memory Tradeoffs in Checkpointing by being Fusion
Aware" (MLSys 2023), where running a value again costs nothing or is forbidden; finite costs keep the cut exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from aotgrad.errors import PartitionError
from aotgrad.partition import costs, op_table
from aotgrad.partition.decision import Decision, Objective, needed_by
from aotgrad.partition.frontier import Frontier, Rate, Unsolvable
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.partition.items import CostModel, Items, is_free, items_of, read_by_backward
from aotgrad.partition.policy import CAUTIOUS, FREE_HAND, Choice, Rules
from aotgrad.partition.problem import Solution

BALANCED = Rate(costs.TIME_PER_BYTE, 1)
"""One byte held is worth as much time as one byte moved."""


def min_cut(analysis: JointAnalysis, objective: Objective) -> Decision:
    """The values to save and to run again, each with its reason.

    Raises:
        PartitionError: if the backward needs a value that can be neither saved nor made again.
    """
    if objective.memory_budget is None:
        return cut_at(analysis, objective, CAUTIOUS, lambda frontier: _without_budget(analysis, frontier))
    return cut_at(analysis, objective, FREE_HAND, lambda frontier: _within_budget(analysis, objective, frontier))


def recompute_all(analysis: JointAnalysis, objective: Objective) -> Decision:
    """The fewest bytes that the halves can exchange, whatever it takes to make the rest again."""
    return cut_at(analysis, objective, FREE_HAND, lambda frontier: frontier.smallest())


def cut_at(analysis: JointAnalysis, objective: Objective, rules: Rules, choose: Callable[[Frontier], Solution]) -> Decision:
    """The decision of a solution of the problem that `rules` leave open."""
    items = items_of(analysis, rules, CostModel(objective.fuses, objective.flops_per_byte))
    try:
        solution = choose(Frontier(items.problem))
    except Unsolvable:
        raise _unsolvable(items) from None
    return _decision(items, solution)


def _without_budget(analysis: JointAnalysis, frontier: Frontier) -> Solution:
    """The balanced solution; never more bytes than if everything that crosses is saved."""
    balanced = frontier.at(BALANCED)
    everything = sum(costs.held_bytes(analysis, node) for node in analysis.crossing)
    return balanced if balanced.kept_bytes <= everything else frontier.within(everything)


def _within_budget(analysis: JointAnalysis, objective: Objective, frontier: Frontier) -> Solution:
    limit = limit_in_bytes(analysis, objective)
    solution = frontier.within(limit)
    if isinstance(objective.memory_budget, int) and solution.kept_bytes > limit:
        _warn_unreachable(limit, solution.kept_bytes, "saved for the backward")
    return solution


def limit_in_bytes(analysis: JointAnalysis, objective: Objective) -> int:
    """The budget in bytes; a fraction is one of what is saved without a budget."""
    budget = objective.memory_budget
    if isinstance(budget, float):
        items = items_of(analysis, CAUTIOUS, CostModel(objective.fuses, objective.flops_per_byte))
        return int(budget * _without_budget(analysis, Frontier(items.problem)).kept_bytes)
    assert budget is not None, "asked for with a budget only"
    return budget


def _warn_unreachable(limit: int, lowest: int, what: str) -> None:
    warnings.warn(
        f"memory_budget is {limit} bytes, but no fewer than {lowest} bytes can be {what}; the plan takes {lowest}",
        stacklevel=2,
    )


# --- Reasons ---------------------------------------------------------------------------------------------------------


def _decision(items: Items, solution: Solution) -> Decision:
    analysis = items.analysis
    again = {items.nodes[k]: _why_again(items, k) for k in sorted(solution.again)}
    direct = read_by_backward(analysis)
    indirect = analysis.reads(again, analysis.forward | analysis.unclaimed)
    saved = {}
    for k in sorted(solution.saved):
        node = items.nodes[k]
        reader = direct.get(node, indirect.get(node))
        use = needed_by(reader) if node in direct else f"needed to run {reader} again in the backward"
        saved[node] = f"{use}; {_why_saved(items, k)}"
    return Decision(
        saved, {node: why for node, why in again.items() if node in analysis.forward and not is_free(analysis, node)}
    )


def _why_saved(items: Items, k: int) -> str:
    node, verdict = items.nodes[k], items.verdicts[k]
    if op_table.is_symbolic_value(node):
        return "a number costs next to nothing to hold"
    if node in items.analysis.held:
        return f"{verdict.reason}, alive anyway"
    if verdict.choice is Choice.SAVE:
        return verdict.reason
    return f"{verdict.reason}, but costs more to make again than to hold"


def _why_again(items: Items, k: int) -> str:
    verdict, held = items.verdicts[k], items.problem.held[k]
    if verdict.choice is not Choice.EITHER or not held:
        return verdict.reason
    return f"{verdict.reason}, and holding it would take {held} bytes"


def _unsolvable(items: Items) -> PartitionError:
    stuck = [(n, v) for n, v in zip(items.nodes, items.verdicts, strict=True) if v.choice is Choice.NEITHER]
    names = ", ".join(f"{node.name} ({verdict.reason})" for node, verdict in stuck)
    return PartitionError(f"the backward needs a value that can be neither saved nor computed again: {names}")
