"""Partitions a joint graph as an earlier one was, if the two have the same forward.

In: two joint graphs, and the partition of the earlier one. Out: a `PartitionAgain`: the partition of the new one, and where
the earlier forward returns everything that the new forward has to return.

    earlier    y = x @ w; gradients of x and w: saves x and w
    new        y = x @ w; gradient of x: saves w, which the earlier forward returns too

Whether an input requires grad may change the forward: torch's own C++ asks. So a function is traced anew where that differs.
But where the forward came out the same, its compiled graph is right for both, and nothing has to be chosen or compiled.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.fx as fx

from aotgrad.errors import PartitionError
from aotgrad.graph import op_table
from aotgrad.ir import GraphHalf, JointGraph, Partition
from aotgrad.partition.decision import Decision
from aotgrad.partition.graphs import JointAnalysis, analyze
from aotgrad.partition.split import copied_name, needed_in_backward, split
from aotgrad.slots import Saved, SavedSymInt


@dataclass(frozen=True)
class PartitionAgain:
    """The partition of a joint graph, and where an earlier forward returns what its forward returns.

    `~k` in `outputs` is input k of the forward itself.
    """

    partition: Partition
    outputs: tuple[int, ...]


def partition_again(joint: JointGraph, earlier: JointGraph, made: Partition) -> PartitionAgain | None:
    """The partition of `joint` whose forward is that of `made`, the partition of `earlier`; `None` if there is none.

    There is none if the forwards differ, if sizes are symbolic, or if the backward needs what `made` neither saves nor
    computes again.
    """
    if not joint.differentiable or made.backward is None or not same_inputs(joint, earlier):
        return None
    numbers = Numbers()
    new, old = (NumberedGraph(analysis, numbers.of_graph(analysis)) for analysis in (analyze(joint), analyze(earlier)))
    if new.effects() != old.effects():
        return None
    decision = same_choice(new, old, made)
    try:
        if runs_more_often(new.analysis, decision):
            return None
        partition = split(new.analysis, decision)
    except PartitionError:
        return None
    outputs = positions(partition, new, made, old)
    if outputs is None:
        return None
    lay_out(partition, made, outputs)
    return PartitionAgain(partition, outputs)


@dataclass(frozen=True)
class NumberedGraph:
    """A joint graph with the number of each node."""

    analysis: JointAnalysis
    numbers: dict[fx.Node, int]

    @functools.cached_property
    def by_name(self) -> dict[str, int]:
        return {node.name: number for node, number in self.numbers.items()}

    def effects(self) -> list[int]:
        """The ops of the forward that draw random numbers or do more than compute, in order."""
        nodes = [node for node in self.analysis.in_order(self.analysis.forward) if node.op == "call_function"]
        return [self.numbers[node] for node in nodes if op_table.runs_once(node.target)]

    def saved(self, slot: Saved | SavedSymInt) -> tuple[str, int] | None:
        """Which value is saved, and whether as a copy; `None` for what is no value of the graph."""
        if slot.name in self.by_name:
            return "itself", self.by_name[slot.name]
        number = self.by_name.get(copied_name(slot.name))
        return None if number is None else ("a copy", number)

    def meaning(self, slot: Any) -> Any:
        """What a forward returns there, comparable between graphs."""
        if isinstance(slot, Saved):
            return self.saved(slot) or (id(self), slot)
        result = self.analysis.results[self.analysis.joint.signature.forward_results.index(slot)]
        return slot, self.numbers[result] if isinstance(result, fx.Node) else repr(result)


class Numbers:
    """One number for each value: equal numbers, equal values. Constants are equal if they are the same object."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}

    def of_graph(self, analysis: JointAnalysis) -> dict[fx.Node, int]:
        """The number of each node. What depends on a tangent is equal to nothing."""
        found: dict[fx.Node, int] = {}
        random_ops = 0
        for node in analysis.nodes:
            if node.op == "output":
                continue
            is_random = node.op == "call_function" and op_table.is_random(node.target)
            random_ops += is_random
            arguments = repr(fx.map_arg((node.args, node.kwargs), lambda argument: cast(Any, Number(found[argument]))))
            key = identity(analysis, node) or (node.target, arguments, random_ops if is_random else None)
            found[node] = self.known.setdefault(key, len(self.known))
        return found


@dataclass(frozen=True)
class Number:
    """Stands for a node among the arguments of another one."""

    number: int


def identity(analysis: JointAnalysis, node: fx.Node) -> Any:
    """What a value is that is not computed: an input, a constant, or a tangent, which only its own graph has."""
    if node in analysis.primals:
        return analysis.primals[node]
    if node.op == "get_attr":
        return "constant", id(operator.attrgetter(str(node.target))(analysis.joint.module))
    return None if node.op == "call_function" else ("only here", id(node))


def same_inputs(joint: JointGraph, earlier: JointGraph) -> bool:
    """Whether two functions take tensors of the same type and layout, and the same becomes of them."""
    facts = [(each.static_inputs, each.mutated_inputs, each.private_inputs, layouts(each)) for each in (joint, earlier)]
    return facts[0] == facts[1] and None not in facts[0][-1]


def layouts(joint: JointGraph) -> list[Any]:
    """Type and layout of each primal; `None` for what is symbolic or has no strides."""
    values = [node.meta["val"] for node in joint.module.graph.find_nodes(op="placeholder")]
    return [layout_of(value) for value in values[: len(joint.signature.primals)]]


def layout_of(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    numbers = (*value.size(), *value.stride(), value.storage_offset())
    return (value.dtype, value.device, value.dim(), numbers) if all(type(each) is int for each in numbers) else None


def same_choice(new: NumberedGraph, old: NumberedGraph, made: Partition) -> Decision:
    """Save and compute again what `made` does."""
    reasons = {old.saved(value.slot): value.reason for value in made.saved}
    again = {old.by_name[value.name]: value.reason for value in made.recomputed if value.name in old.by_name}
    own = [(node, new.numbers[node]) for node in new.analysis.in_order(new.analysis.forward | new.analysis.unclaimed)]
    found = [(node, ("itself", number)) for node, number in own] + [(node, ("a copy", number)) for node, number in own]
    saved = {node: "an input of the graph" for node in new.analysis.primals if node not in new.analysis.copied}
    saved |= {node: reasons[meaning] for node, meaning in found if meaning in reasons}
    copies = frozenset(node for node, meaning in found if meaning in reasons and meaning[0] == "a copy")
    return Decision(saved, {node: again[number] for node, number in own if number in again}, copies - new.analysis.copied)


def runs_more_often(analysis: JointAnalysis, decision: Decision) -> bool:
    """Whether the backward computes something of the forward again that is not in the decision; views cost nothing.

    Raises:
        PartitionError: it needs what can only be saved.
    """
    again = needed_in_backward(analysis, decision) - decision.saved.keys() - decision.again.keys()
    work = [node for node in again & analysis.forward if node.op == "call_function" and not analysis.is_view(node)]
    return any(not op_table.is_creation(node.target) for node in work)


def positions(partition: Partition, new: NumberedGraph, made: Partition, old: NumberedGraph) -> tuple[int, ...] | None:
    """Where the forward of `made` returns what that of `partition` returns; `None` if it lacks something."""
    inputs = enumerate(new.analysis.primals)
    returned = {("itself", new.numbers[node]): ~k for k, node in inputs if node not in new.analysis.copied}
    returned |= {old.meaning(slot): position for position, slot in enumerate(made.forward.signature.outputs)}
    wanted = [returned.get(new.meaning(slot)) for slot in partition.forward.signature.outputs]
    found = tuple(position for position in wanted if position is not None)
    return found if len(found) == len(wanted) else None


def lay_out(partition: Partition, made: Partition, outputs: Sequence[int]) -> None:
    """Give what the backward takes the strides that the compiled forward gives it, as the backend of `made` found out."""
    values = {slot: node.meta["val"] for slot, node in placeholders(made.backward)}
    given = made.forward.signature.outputs
    pairs = zip(partition.forward.signature.outputs, outputs, strict=True)
    source = {slot: given[position] for slot, position in pairs if position >= 0}
    for slot, node in placeholders(partition.backward):
        if slot in source and (stride := values[source[slot]].stride()) != node.meta["val"].stride():
            node.meta["val"] = node.meta["val"].as_strided(node.meta["val"].size(), stride)


def placeholders(half: GraphHalf | None) -> list[tuple[Any, fx.Node]]:
    if half is None:
        return []
    return list(zip(half.signature.inputs, half.module.graph.find_nodes(op="placeholder"), strict=True))
