"""Updates inputs as soon as their new values can be computed, so that gradients are freed one by one.

    g2 = mm(..); g1 = mm(..); p1 = add(w1, g1); p2 = add(w2, g2)        ->      g2; p2; g1; p1

In: a graph without a backward that changes inputs, as that of a training step. Out: the same ops in another order. Ops on
lists become one for each tensor, since a list is complete only when its last tensor is computed. `train_step` runs this pass
with `keep_gradients=False`, and on the CPU so that equal layers have equal updates.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

from aotgrad.graph import op_table
from aotgrad.graph.early_order import Block, early_order
from aotgrad.graph.memory_owners import memory_owners, readers_of_memory
from aotgrad.passes.base import AnyGraph
from aotgrad.slots import Primal, SlotSignature, UpdatedInput


@dataclass(frozen=True)
class EarlyUpdates:
    """Moves the ops that only the update of an input needs right behind what they read.

    `only_on`: the type of the devices that all tensors are on, or the graph stays as it is; `None`: any.
    """

    only_on: str | None = None
    name: str = "early_updates"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        nodes = graph.module.graph
        if graph.signature.tangents or (self.only_on is not None and devices_of(nodes) != {self.only_on}):
            return graph
        split_lists(nodes)
        *ops, end = nodes.nodes
        updated = updated_inputs(nodes, graph.signature)
        for value in updated:
            value.meta["early_update"] = True
        order = early_order(ops, {op: op.all_input_nodes for op in ops}, updates(ops, end, updated), small_nodes(ops))
        for op in order[len(graph.signature.inputs) :]:
            end.prepend(op)
        return graph


def devices_of(graph: fx.Graph) -> set[str]:
    """The types of the devices of all tensors."""
    values = (value for node in graph.nodes for value in pytree.tree_leaves(node.meta.get("val")))
    return {value.device.type for value in values if isinstance(value, torch.Tensor)}


def split_lists(graph: fx.Graph) -> None:
    """Replace each op on lists by one for each tensor of its lists."""
    for node in list(graph.nodes):
        if op_table.is_listwise(node.target) and all(op_table.is_getitem(user.target) for user in node.users):
            split_list(node)
            graph.erase_node(node)


def split_list(node: fx.Node) -> None:
    """Let the users of an op on lists read ops on lists of one tensor. A fused update returns several lists."""
    args: Any = node.args or tuple(node.kwargs.values())
    value, count = node.meta["val"], len(args[0])
    with node.graph.inserting_before(node):
        parts = [for_one_tensor(node, k, count) for k in range(count)]
        for user in list(node.users):
            index: Any = user.args[1]
            if isinstance(value, tuple):
                for item in list(user.users):
                    position: Any = item.args[1]
                    results = node.graph.call_function(operator.getitem, (parts[position], index))
                    results.meta["val"] = parts[position].meta["val"][index]
                    item.args = (results, 0)
                node.graph.erase_node(user)
            else:
                user.args = (parts[index], 0)


def for_one_tensor(node: fx.Node, k: int, count: int) -> fx.Node:
    """The op on lists of `count` tensors, for their item `k` alone."""

    def part(value: Any) -> Any:
        return [value[k]] if isinstance(value, (list, tuple)) and len(value) == count else value

    target: Any = node.target
    args, kwargs = tuple(map(part, node.args)), {name: part(value) for name, value in node.kwargs.items()}
    new, value = node.graph.call_function(target, args, kwargs), node.meta["val"]
    new.meta = {**node.meta, "val": tuple(map(part, value)) if isinstance(value, tuple) else part(value)}
    return new


def updated_inputs(graph: fx.Graph, signature: SlotSignature) -> dict[fx.Node, fx.Node]:
    """By each value that is the new one of an input, and no other result, that input."""
    (end,) = graph.find_nodes(op="output")
    inputs = dict(zip(signature.inputs, graph.find_nodes(op="placeholder"), strict=True))
    results = list(zip(signature.outputs, end.args[0], strict=True))
    others = {value for slot, value in results if not isinstance(slot, UpdatedInput)}
    found = {value: inputs[Primal(slot.index)] for slot, value in results if isinstance(slot, UpdatedInput)}
    return {value: target for value, target in found.items() if value not in others}


def updates(nodes: Sequence[fx.Node], end: fx.Node, updated: Mapping[fx.Node, fx.Node]) -> Iterator[Block]:
    """The updates of inputs. They run after all else that reads these inputs, so that they can run in place."""
    readers = readers_of_memory(memory_owners(nodes))
    place = {node: k for k, node in enumerate(nodes)}
    for family in families(nodes, end, updated.keys()):
        targets = [target for value, target in updated.items() if value in family]
        after = {reader for target in targets for reader in readers.get(target, ())} - family
        yield Block(sorted(family, key=place.__getitem__), after)


def families(nodes: Sequence[fx.Node], end: fx.Node, updated: Collection[fx.Node]) -> list[set[fx.Node]]:
    """The new values of inputs that depend on each other, with the nodes that nothing else needs."""
    family: dict[fx.Node, set[fx.Node]] = {}
    new_values = {op for value in updated for op in computing(value)}
    for node in reversed(nodes):
        readers = [user for user in node.users if user is not end]
        is_needed = node in updated if end in node.users else bool(readers)
        if not is_needed or not may_move(node) or not family.keys() >= set(readers):
            continue
        found = {id(family[reader]): family[reader] for reader in readers}
        if len(found) < 2 or node in new_values:
            largest, *others = sorted(found.values(), key=len, reverse=True) or [set()]
            largest.update({node}, *others)
            family.update(dict.fromkeys({node}.union(*others), largest))
    return list({id(found): found for found in family.values()}.values())


def computing(value: Any) -> Iterator[fx.Node]:
    """A value, and what it is an item of."""
    yield value
    while op_table.is_getitem(value.target):
        value = value.args[0]
        yield value


def may_move(node: fx.Node) -> bool:
    return node.op == "call_function" and not op_table.runs_once(node.target)


def small_nodes(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Inputs, and what is computed of them alone and is no more than numbers."""
    small: set[fx.Node] = set()
    for node in nodes:
        computes_numbers = may_move(node) and all(map(is_scalar, pytree.tree_leaves(node.meta.get("val"))))
        if node.op == "placeholder" or (computes_numbers and small.issuperset(node.all_input_nodes)):
            small.add(node)
    return small


def is_scalar(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.dim() == 0
