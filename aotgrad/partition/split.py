"""Extraction: a joint graph and the values to save -> forward and backward graph.

In: a `JointAnalysis` and the saved nodes, each with a reason. Out: a `Partition`.

    joint      primals_1, tangents_1 -> a = sin(primals_1); c = cos(primals_1); g = mul(tangents_1, c) -> [a, g]
    saving primals_1:
    forward    primals_1 -> a = sin(primals_1) -> (a, primals_1)
    backward   primals_1, tangents_1 -> c = cos(primals_1); g = mul(tangents_1, c) -> (g,)

The forward keeps the order of the joint graph. So does the backward, for what depends on tangents; a value that is made
again is made just before its first use, once.

Limits: each half gets its own nodes, but both share the constants and submodules of the joint module.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad.errors import PartitionError
from aotgrad.ir import GraphHalf, Partition, SavedValue
from aotgrad.partition import costs, op_table
from aotgrad.partition.graphs import JointAnalysis, inputs_closure
from aotgrad.partition.symbols import bound_symbol, symbols_of
from aotgrad.slots import Saved, SavedSymInt, backward_signature, forward_signature


def split(analysis: JointAnalysis, saved: Mapping[fx.Node, str]) -> Partition:
    """Cut the joint graph at `saved`, which maps each node to the reason why it is saved.

    Saved nodes that the backward does not need are left out, and sizes that its inputs mention are added.

    Raises:
        PartitionError: if the backward needs a value that is neither saved nor may be computed again.
    """
    needed = needed_in_backward(analysis, saved)
    kept = {node: saved[node] for node in analysis.in_order(saved) if node in needed}
    kept = {**kept, **_sizes_to_bind(analysis, kept)}
    values = [_SavedNode(node, _slot(analysis, node)) for node in analysis.in_order(kept)]
    slots = [value.slot for value in values]
    signature = analysis.joint.signature
    forward = GraphHalf(_forward_module(analysis, values), forward_signature(signature, slots))
    backward = GraphHalf(_backward_module(analysis, values), backward_signature(signature, slots))
    described = [describe(analysis, value.node, value.slot, kept[value.node]) for value in values]
    return Partition(forward, backward, tuple(_tensors_first(described)))


def needed_in_backward(analysis: JointAnalysis, saved: Iterable[fx.Node]) -> set[fx.Node]:
    """All forward and unclaimed nodes that the backward reads, saved ones and those that it makes again.

    Raises:
        PartitionError: if one of them is neither saved nor may be computed again.
    """
    saved = frozenset(saved)
    outside = analysis.forward | analysis.unclaimed
    readers = [arg for node in analysis.backward for arg in node.all_input_nodes]
    stack = [node for node in (*readers, *analysis.gradients) if isinstance(node, fx.Node)]
    needed: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node in needed or node not in outside:
            continue
        needed.add(node)
        if node not in saved:
            _check_can_run_again(analysis, node)
            stack.extend(node.all_input_nodes)
    return needed


def describe(analysis: JointAnalysis, node: fx.Node, slot: Saved | SavedSymInt, reason: str) -> SavedValue:
    return SavedValue(slot, costs.held_bytes(analysis, node), reason, source_line(node))


def source_line(node: fx.Node) -> str | None:
    """The last line of the user's stack trace, which is the code of the line itself."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip(" ^~")]
    return lines[-1] if lines else None


@dataclass(frozen=True)
class _SavedNode:
    """A node of the joint graph and what it is called on both sides; for a copy that is the name of the copy."""

    node: fx.Node
    slot: Saved | SavedSymInt


def _slot(analysis: JointAnalysis, node: fx.Node) -> Saved | SavedSymInt:
    if op_table.is_symbolic_value(node):
        return SavedSymInt(node.name)
    if op_table.is_tuple_value(node):
        raise PartitionError(f"the backward reads {node.name}, a tuple, as a whole; only its items can be saved")
    return Saved(_name_of_copy(analysis, node) if node in analysis.copied else node.name)


def _name_of_copy(analysis: JointAnalysis, node: fx.Node) -> str:
    taken = {other.name for other in analysis.nodes}
    return next(name for suffix in itertools.count() if (name := f"{node.name}_copy{suffix or ''}") not in taken)


def _tensors_first(values: list[SavedValue]) -> list[SavedValue]:
    return sorted(values, key=lambda value: isinstance(value.slot, SavedSymInt))


def _check_can_run_again(analysis: JointAnalysis, node: fx.Node) -> None:
    if node.op == "placeholder" or node in analysis.copied:
        problem = "is an input of the forward"
    elif node.op == "call_function" and op_table.runs_once(node.target):
        problem = "may run only once"
    else:
        return
    raise PartitionError(f"the backward needs {node.name}, which is not saved and {problem}; save it")


def _sizes_to_bind(analysis: JointAnalysis, saved: Iterable[fx.Node]) -> dict[fx.Node, str]:
    """Numbers to save for the symbols in the shapes of the backward's inputs; backends look for them there."""
    bindings: dict[object, fx.Node] = {}
    for node in analysis.in_order(analysis.forward):
        symbol = bound_symbol(node.meta.get("val"))
        if symbol is not None:
            bindings.setdefault(symbol, node)
    saved = list(saved)
    bound = {bound_symbol(node.meta.get("val")) for node in saved}
    sizes: dict[fx.Node, str] = {}
    for node in (*saved, *analysis.tangents) if bindings else ():
        for symbol in symbols_of(node.meta.get("val")):
            if symbol in bindings and symbol not in bound:
                bound.add(symbol)
                sizes[bindings[symbol]] = f"a size of {node.name} in the backward"
    return sizes


# --- The two graphs --------------------------------------------------------------------------------------------------


def _forward_module(analysis: JointAnalysis, values: list[_SavedNode]) -> fx.GraphModule:
    graph = fx.Graph()
    run = inputs_closure([*analysis.forward, *(value.node for value in values)])
    env: dict[fx.Node, fx.Node] = {}
    for node in analysis.in_order(run):
        env[node] = _copy_node(graph, node, env, "is_forward")
    copies = {value.node: insert_copy(env[value.node], value.slot.name) for value in values if value.node in analysis.copied}
    crossing = [copies.get(value.node) or env[value.node] for value in _in_signature_order(values, tensors_first=True)]
    results = fx.map_arg(list(analysis.results), lambda node: env[node])
    graph.output((*results, *crossing))
    return _module(analysis, graph)


def _backward_module(analysis: JointAnalysis, values: list[_SavedNode]) -> fx.GraphModule:
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for value in _in_signature_order(values, tensors_first=False):
        env[value.node] = _placeholder(graph, value.node, value.slot.name)
    for node in analysis.tangents:
        env[node] = _placeholder(graph, node, node.name)
    gradients = [node for node in analysis.gradients if isinstance(node, fx.Node)]
    for node in (*analysis.in_order(analysis.backward), *gradients):
        for missing in _missing(analysis, node, env):
            env[missing] = _copy_node(graph, missing, env, "is_backward")
    graph.output(tuple(fx.map_arg(list(analysis.gradients), lambda node: env[node])))
    return _module(analysis, graph)


def _module(analysis: JointAnalysis, graph: fx.Graph) -> fx.GraphModule:
    return fx.GraphModule(analysis.joint.module, graph)


def _in_signature_order(values: list[_SavedNode], tensors_first: bool) -> list[_SavedNode]:
    return sorted(values, key=lambda value: isinstance(value.slot, SavedSymInt) == tensors_first)


def _missing(analysis: JointAnalysis, node: fx.Node, env: Mapping[fx.Node, fx.Node]) -> list[fx.Node]:
    """The node and all its inputs that have no copy yet, in the order of the joint graph."""
    return analysis.in_order(inputs_closure([node], stop=env))


def _copy_node(graph: fx.Graph, node: fx.Node, env: Mapping[fx.Node, fx.Node], tag: str) -> fx.Node:
    copied = graph.node_copy(node, lambda arg: env[arg])
    copied.meta["partitioner_tag"] = tag
    return copied


def _placeholder(graph: fx.Graph, node: fx.Node, name: str) -> fx.Node:
    placeholder = graph.placeholder(name)
    placeholder.meta = {**node.meta, "partitioner_tag": "is_backward"}
    return placeholder


def insert_copy(node: fx.Node, name: str) -> fx.Node:
    """A copy of `node`'s value with the same strides, made before anything later in its graph can overwrite it."""
    graph, value = node.graph, node.meta["val"].detach()
    copy = value.new_empty_strided(value.shape, value.stride())
    dense = costs.extent_bytes(value) == costs.dense_bytes(value)
    with graph.inserting_before((_last_placeholder(graph) if node.op == "placeholder" else node).next):
        if dense:
            return _call(graph, torch.ops.aten.clone.default, (node,), copy, name)
        size = _numbers(node, torch.ops.aten.sym_size.int, value.shape)
        stride = _numbers(node, torch.ops.aten.sym_stride.int, value.stride())
        empty = torch.ops.aten.new_empty_strided.default
        memory = _call(graph, empty, (node, size, stride), copy, f"{name}_memory")
        return _call(graph, torch.ops.aten.copy.default, (memory, node), copy, name)


def _numbers(node: fx.Node, read: Any, values: Iterable[Any]) -> list[Any]:
    """Sizes or strides of `node` as arguments of a node: ints, and nodes that read the symbolic ones."""
    return [
        value if isinstance(value, int) else _call(node.graph, read, (node, dim), value, f"{node.name}_number_{dim}")
        for dim, value in enumerate(values)
    ]


def _last_placeholder(graph: fx.Graph) -> fx.Node:
    return [node for node in graph.nodes if node.op == "placeholder"][-1]


def _call(graph: fx.Graph, target: Any, args: tuple, value: Any, name: str) -> fx.Node:
    node = graph.create_node("call_function", target, args, name=name)
    node.meta = {"val": value, "partitioner_tag": "is_forward"}
    return node
