"""The choice with the least cost: for each value that the backward needs, save it, or run it again from saved ones.

In: a `JointAnalysis`. Out: the saved nodes with their reasons, for `split`.

    h = mm(x, w); s = sin(h); c = cos(s)   and the backward reads s and c in pointwise ops
    saves h, since mm never runs twice, and runs sin and cos again: one value is held instead of two

The choice is a minimum cut, so it is exact for the costs in `costs.py`. A value v is two nodes, v_in and v_out; the
sink side means "available in the backward":

    source -> v_in   cost of running v again      cut: v runs again
    v_in -> v_out    cost of saving v             cut: v is saved
    p_out -> v_in    infinite, for each input p   v runs again only where its inputs are available
    v_out -> sink    infinite                     the backward reads v

Views are not items of their own: they cost nothing, so a view stands for its base and the sizes that it is given.

A cut with recomputation costs of 0 or infinity is in H. He and S. Yu, "Transcending Runtime-Memory Tradeoffs in
Checkpointing by being Fusion Aware" (MLSys 2023); finite ones keep it exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch.fx as fx

from aotgrad.errors import PartitionError
from aotgrad.partition import costs, maxflow, op_table
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.partition.policy import Choice, Verdict, judge
from aotgrad.partition.save_all import needed_by
from aotgrad.partition.split import needed_in_backward

SOURCE, SINK = 0, 1


def min_cut(analysis: JointAnalysis) -> dict[fx.Node, str]:
    """The values to save, each with its reason.

    Raises:
        PartitionError: if the backward needs a value that can be neither saved nor made again.
    """
    items = _items(analysis)
    value, side = maxflow.min_cut(2 + 2 * len(items), _edges(analysis, items), SOURCE, SINK)
    if value >= maxflow.INFINITE:
        _raise_uncuttable(analysis, items)
    cut = [item.node for item in items.values() if item.entry in side and item.exit not in side]
    needed = needed_in_backward(analysis, cut)
    saved = [node for node in cut if node in needed]
    return _with_reasons(analysis, items, saved, needed)


@dataclass(frozen=True)
class _Item:
    """One storage, or one number, that the backward may need; `entry` and `exit` are its nodes in the network."""

    node: fx.Node
    verdict: Verdict
    entry: int
    exit: int


def _items(analysis: JointAnalysis) -> dict[fx.Node, _Item]:
    """The forward and unclaimed values that what the backward reads is made of, in the order of the graph."""
    stack = list(_read_directly(analysis))
    found: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(_parents(analysis, node))
    nodes = analysis.in_order(found)
    return {node: _Item(node, judge(analysis, node), 2 + 2 * k, 3 + 2 * k) for k, node in enumerate(nodes)}


def _read_directly(analysis: JointAnalysis) -> dict[fx.Node, fx.Node | None]:
    return analysis.reads(analysis.backward, analysis.forward | analysis.unclaimed)


def _parents(analysis: JointAnalysis, node: fx.Node) -> Iterator[fx.Node]:
    if node not in analysis.copied:
        for arg in node.all_input_nodes:
            yield from analysis.support[arg]


def _edges(analysis: JointAnalysis, items: dict[fx.Node, _Item]) -> Iterator[maxflow.Edge]:
    materialized = _materialized(analysis)
    for item in items.values():
        yield SOURCE, item.entry, _recompute_capacity(analysis, item, item.node in materialized)
        yield item.entry, item.exit, _save_capacity(analysis, item)
        for parent in dict.fromkeys(_parents(analysis, item.node)):
            yield items[parent].exit, item.entry, maxflow.INFINITE
    for node in _read_directly(analysis):
        yield items[node].exit, SINK, maxflow.INFINITE


def _save_capacity(analysis: JointAnalysis, item: _Item) -> int:
    return costs.cost_of_saving(analysis, item.node) if item.verdict.savable else maxflow.INFINITE


def _recompute_capacity(analysis: JointAnalysis, item: _Item, materialized: bool) -> int:
    if not item.verdict.recomputable:
        return maxflow.INFINITE
    return costs.cost_of_recomputing(analysis, item.node, materialized)


def _materialized(analysis: JointAnalysis) -> set[fx.Node]:
    """Values that an op of the backward reads from memory, since it cannot be fused with what makes them."""
    readers = (node for node in analysis.backward | analysis.unclaimed if node.op == "call_function")
    unfused = (node for node in readers if not op_table.reads_without_materializing(node.target))
    return {item for node in unfused for arg in node.all_input_nodes for item in analysis.support[arg]}


# --- Reasons ---------------------------------------------------------------------------------------------------------


def _with_reasons(
    analysis: JointAnalysis, items: dict[fx.Node, _Item], saved: Iterable[fx.Node], needed: set[fx.Node]
) -> dict[fx.Node, str]:
    direct = _read_directly(analysis)
    saved = list(saved)
    again = needed - set(saved)
    indirect = analysis.reads(again, analysis.forward | analysis.unclaimed)
    reasons = {}
    for node in saved:
        reader = direct.get(node, indirect.get(node))
        use = needed_by(reader) if node in direct else f"needed to run {reader} again in the backward"
        reasons[node] = f"{use}; {_why_saved(analysis, node, items[node].verdict)}"
    return reasons


def _why_saved(analysis: JointAnalysis, node: fx.Node, verdict: Verdict) -> str:
    if op_table.is_symbolic_value(node):
        return "a number costs next to nothing to hold"
    if node in analysis.held:
        return f"{verdict.reason}, alive anyway"
    if verdict.choice is Choice.SAVE:
        return verdict.reason
    return f"{verdict.reason}, but costs more to make again than to hold"


def _raise_uncuttable(analysis: JointAnalysis, items: dict[fx.Node, _Item]) -> None:
    stuck = [item for item in items.values() if item.verdict.choice is Choice.NEITHER]
    names = ", ".join(f"{item.node.name} ({item.verdict.reason})" for item in stuck)
    raise PartitionError(f"the backward needs a value that can be neither saved nor computed again: {names}")
