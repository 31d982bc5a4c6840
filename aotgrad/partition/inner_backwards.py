"""Partitions around the backwards that a function runs itself, such as the `backward()` of a training step.

In: an inference graph whose nodes say which of them a backward recorded (`capture/inner_backwards.py`), and a chooser.
Out: a `Partition` of one graph, where each backward recomputes what the chooser does not save for it.

    step     h = sin(x); y = cos(h); loss = sum(y); g = ...sin(h)...cos(x); w2 = w - g
    saving x before the backward:
             h = sin(x); y = cos(h); loss = sum(y); h_1 = sin(x); g = ...sin(h_1)...cos(x); w2 = w - g

For each backward, the graph is split there as a joint graph is, and the halves are put behind each other. All that was
recorded later belongs to the second half. Nobody writes to an argument between the halves, so any may be saved.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_nodes
from aotgrad.graph.dependents import dependencies_of
from aotgrad.graph.ends import outputs_of
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.ir import GraphHalf, JointGraph, Partition, RecomputedValue
from aotgrad.partition.decision import Chooser, Objective
from aotgrad.partition.graphs import (
    JointAnalysis,
    claim_numbers_and_items,
    is_pinned_to_its_half,
    memory_of_nodes,
)
from aotgrad.partition.split import split
from aotgrad.partition.tags import verdict_of
from aotgrad.slots import Gradient, Primal, SlotSignature


def partition_inside(
    joint: JointGraph, choose: Chooser, objective: Objective, finish: Callable[[Partition], Partition]
) -> Partition:
    """The partition of an inference graph, which recomputes values for the backwards inside.

    Raises:
        PartitionError: a backward needs a value that can be neither saved nor recomputed.
    """
    recomputed: list[RecomputedValue] = []
    numbers = inner_backwards(joint)
    for number in numbers if numbers and is_asked_for(joint, objective) else ():
        analysis = analyze_inner_backward(joint, number)
        halves = finish(split(analysis, choose(analysis, objective), objective.collectives_first))
        joint = replace(joint, module=joined(joint, halves))
        recomputed += halves.recomputed
    return Partition(GraphHalf(joint.module, joint.signature), None, (), tuple(recomputed))


def is_asked_for(joint: JointGraph, objective: Objective) -> bool:
    """Whether a budget, an offer to offload, or the tag of a node asks for a choice. Otherwise all values are kept."""
    budget = objective.memory_budget is not None or objective.host_bytes is not None
    return budget or any(verdict_of(node) is not None for node in joint.module.graph.nodes)


def inner_backwards(joint: JointGraph) -> list[int]:
    """The numbers of the backwards inside, in the order in which they run."""
    return sorted({node.meta["inner_backward"] for node in joint.module.graph.nodes if "inner_backward" in node.meta})


def analyze_inner_backward(joint: JointGraph, number: int) -> JointAnalysis:
    """The nodes of the graph by role for one backward inside: what comes before is the forward."""
    nodes = tuple(joint.module.graph.nodes)
    returned = outputs_of(joint.module.graph)
    position = {node: index for index, node in enumerate(nodes)}
    live = dependencies_of(value for value in returned if isinstance(value, fx.Node))
    live |= dependencies_of(
        node for node in nodes if is_pinned_to_its_half(node) and op_table.is_kept_when_dead(node.target)
    )
    start = next(k for k, node in enumerate(nodes) if node.meta.get("inner_backward", -1) >= number)
    placeholders = joint.module.graph.find_nodes(op="placeholder")
    forward = {node for node in nodes[:start] if node in live}.union(placeholders)
    claim_numbers_and_items(nodes, forward, live)
    later, backward = live - forward, set[fx.Node]()
    for node in nodes[start:]:
        if node in later and not (is_formula(node, number) and backward.isdisjoint(node.all_input_nodes)):
            backward.add(node)

    is_late = [isinstance(value, fx.Node) and value not in forward for value in returned]
    virtual = joint_around(joint, is_late)
    primals = dict(zip(placeholders, virtual.signature.primals, strict=True))
    base, copied = memory_of_nodes(virtual, nodes, primals, forward)
    results = [value for value, late in zip(returned, is_late, strict=True) if not late]
    returned_early = {base[value] for value in results if isinstance(value, fx.Node)}
    return JointAnalysis(
        joint=virtual,
        nodes=nodes,
        position=position,
        primals=primals,
        tangents={},
        results=tuple(results),
        gradients=tuple(itertools.compress(returned, is_late)),
        forward=frozenset(forward),
        backward=frozenset(backward),
        unclaimed=frozenset(live - forward - backward),
        base=base,
        copied=copied,
        held=frozenset(returned_early.union(placeholders) - copied),
        outside=frozenset(),
    )


def is_formula(node: fx.Node, number: int) -> bool:
    """Whether a node of a backward computes what gradients are multiplied with, which can be done before."""
    is_of_run = node.meta.get("inner_backward") == number and not node.meta.get("inner_gradient")
    return is_of_run and not is_pinned_to_its_half(node)


def joint_around(joint: JointGraph, is_late: Sequence[bool]) -> JointGraph:
    """The graph as a joint graph, whose late results are gradients."""
    slots = joint.signature.outputs
    early = [slot for slot, late in zip(slots, is_late, strict=True) if not late]
    late = [Gradient(Primal(k)) for k, late in enumerate(is_late) if late]
    primals = tuple(Primal(k) for k in range(len(joint.signature.inputs)))
    every = frozenset(range(len(primals)))
    signature = SlotSignature(primals, (*early, *late))
    return JointGraph(joint.module, signature, every, frozenset(), private_inputs=every)


def joined(joint: JointGraph, halves: Partition) -> fx.GraphModule:
    """The module that runs both halves, one after the other, without the nodes of the first half that nothing reads."""
    forward, backward, graph = halves.forward, halves.backward, fx.Graph()
    assert backward is not None, "split returns both halves"
    copies: dict[fx.Node, fx.Node] = {}
    first = copy_nodes(graph, forward.module.graph, copies)
    computed = dict(zip(forward.signature.outputs, first, strict=True))
    given = {node: computed[slot] for slot, node in backward.placeholders.items()}
    computed |= zip(backward.signature.outputs, copy_nodes(graph, backward.module.graph, given), strict=True)
    slots = enumerate(joint.signature.outputs)
    graph.output(tuple(computed[late if (late := Gradient(Primal(k))) in computed else slot] for k, slot in slots))
    for node in reversed(copies.values()):
        if node.op == "call_function" and not node.users and not op_table.is_kept_when_dead(node.target):
            graph.erase_node(node)
    return LazyGraphModule(joint.module, graph)
