"""Takes values from the guard of a plan, which has computed them to answer questions about values.

    guard   loss = f(x);  loss > 3 is True           plan    loss = f(x);  y = g(loss)
    becomes                                          plan    y = g(guarded_1)

Views, and numbers read from tensors, are recomputed: what a plan takes shares no memory with its other inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_nodes
from aotgrad.graph.ends import outputs_of
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.graph.memory_owners import viewed_node
from aotgrad.ir import JointGraph
from aotgrad.passes.dead_code import DeadCodeElimination
from aotgrad.slots import GuardedValue, Primal, SlotSignature, UserOutput


def take_guarded_values(
    joint: JointGraph, computed: Collection[fx.Node], keep: Callable[[Sequence[fx.Node]], None]
) -> JointGraph:
    """`joint` without what the guard computes. Changes `joint` in place.

    A graph with a backward stays as it is: the partitioner decides what is saved for it.

    Args:
        computed: the nodes that the guard computes.
        keep: is called with those whose values are inputs from now on.
    """
    graph = joint.module.graph
    inside = with_items_of_results([node for node in computed if node.op == "call_function"])
    taken = values_taken(graph, inside)
    if joint.differentiable or not taken or not all(map(is_takeable, taken)):
        return joint
    keep(taken)
    last = graph.find_nodes(op="placeholder")[-1]
    for number, node in enumerate(taken, 1):
        with graph.inserting_after(last):
            last = graph.placeholder(f"guarded_{number}")
        last.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(last)
    for node in reversed(list(graph.nodes)):
        if node in inside and not node.users:
            graph.erase_node(node)
    joint.module.recompile()
    slots = map(GuardedValue, range(len(taken)))
    return replace(joint, signature=SlotSignature((*joint.signature.inputs, *slots), joint.signature.outputs))


def drop_guarded_values(joint: JointGraph, keep_only: Callable[[Sequence[int]], None]) -> JointGraph:
    """`joint` without guarded values that nothing uses. Changes `joint` in place.

    Args:
        keep_only: is called with the numbers of the others.
    """
    slots, graph = joint.signature.inputs, joint.module.graph
    inputs = zip(slots, graph.find_nodes(op="placeholder"), strict=True)
    guarded = [(slot, node) for slot, node in inputs if isinstance(slot, GuardedValue)]
    for _, node in guarded:
        if not node.users:
            graph.erase_node(node)
    used = [(slot.index, node) for slot, node in guarded if node.users]
    keep_only([index for index, _ in used])
    for number, (_, node) in enumerate(used, 1):
        node.name = node.target = f"guarded_{number}"
    joint.module.recompile()
    others = (slot for slot in slots if not isinstance(slot, GuardedValue))
    signature = SlotSignature((*others, *map(GuardedValue, range(len(used)))), joint.signature.outputs)
    return replace(joint, signature=signature)


@dataclass(frozen=True)
class SplitGuard:
    """What a guard computes, in two parts.

    Attributes:
        values: the ops on tensors, as a graph for a backend.
        answers: views, and the numbers that the guard reads; it takes the arguments, and the results of `values`.
    """

    values: JointGraph
    answers: JointGraph

    @classmethod
    def of(cls, guard: fx.GraphModule, static_inputs: frozenset[int]) -> SplitGuard | None:
        """Split the graph of a guard, which is changed in place; `None` if there is nothing for a backend."""
        copies, taken = dict[fx.Node, fx.Node](), list[fx.Node]()
        graph = copy_with_primals(guard.graph, copies)
        inside = [node for node in guard.graph.nodes if "val" in node.meta]
        answers = take_guarded_values(as_joint(guard, static_inputs), inside, taken.extend)
        graph.output(tuple(copies[node] for node in taken))
        values = as_joint(LazyGraphModule(guard, graph), static_inputs)
        called = DeadCodeElimination().apply(values).module.graph.nodes
        is_known = all("val" in node.meta for node in called if node.op == "call_function")
        return cls(values, answers) if taken and is_known else None


def copy_with_primals(graph: fx.Graph, copies: dict[fx.Node, fx.Node]) -> fx.Graph:
    """A copy of a graph, without an output, whose placeholders are called as those of a joint graph."""
    copy = fx.Graph()
    for number, node in enumerate(graph.find_nodes(op="placeholder"), 1):
        copies[node] = copy.placeholder(f"primals_{number}")
        copies[node].meta = dict(node.meta)
    copy_nodes(copy, graph, copies)
    return copy


def as_joint(module: fx.GraphModule, static_inputs: frozenset[int]) -> JointGraph:
    """A graph of tensors as a joint graph without a backward."""
    inputs = module.graph.find_nodes(op="placeholder")
    results = outputs_of(module.graph)
    signature = SlotSignature(tuple(map(Primal, range(len(inputs)))), tuple(map(UserOutput, range(len(results)))))
    return JointGraph(module, signature, static_inputs, frozenset())


def with_items_of_results(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Nodes, and the items of their results."""
    found, pending = set(nodes), list(nodes)
    while pending:
        items = [user for user in pending.pop().users if op_table.is_getitem(user.target) and user not in found]
        found.update(items)
        pending += items
    return found


def values_taken(graph: fx.Graph, inside: Collection[fx.Node]) -> list[fx.Node]:
    """The nodes in `inside` whose values the others need, in order; a view or a number stands for what it is made of."""
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node not in inside or (node in needed and is_recomputed(node)):
            needed.update(node.all_input_nodes)
    return [node for node in graph.nodes if node in needed and node in inside and not is_recomputed(node)]


def is_recomputed(node: fx.Node) -> bool:
    """Whether the plan recomputes the value: a view, or a number."""
    value = node.meta.get("val")
    is_number = not isinstance(value, (torch.Tensor, list, tuple)) and value is not None
    return is_number or viewed_node(node) is not None


def is_takeable(node: fx.Node) -> bool:
    """Whether a value can be an input: a plain tensor whose sizes are known before the call."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not torch_compat.has_unknown_sizes(value)
