"""Extracts the forward and the backward graph from a joint graph and a choice of saved values.

In: a `JointAnalysis` and a `Decision`. Out: a `Partition`.

    joint      primals_1, tangents_1 -> a = sin(primals_1); c = cos(primals_1); g = mul(tangents_1, c) -> [a, g]
    saving primals_1:
    forward    primals_1 -> a = sin(primals_1) -> (a, primals_1)
    backward   primals_1, tangents_1 -> c = cos(primals_1); g = mul(tangents_1, c) -> (g,)

The forward keeps the order of the joint graph. So does the backward for nodes that depend on tangents. A recomputed value
runs once, just before its first use.

Limits: each half gets its own nodes, but both share the constants and submodules of the joint module.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.fx as fx

from aotgrad.errors import PartitionError
from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_node
from aotgrad.graph.dependents import dependencies_of
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.ir import GraphHalf, Partition, RecomputedValue, SavedValue
from aotgrad.partition import costs, offload_nodes, random_state, schedule, tags
from aotgrad.partition.compact import compacted, retrace
from aotgrad.partition.crossing import Crossing, crossing_of, described, sizes_to_bind, sizes_to_read, user_line
from aotgrad.partition.decision import Decision
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.slots import Saved, SavedSymInt, backward_signature, forward_signature


def split(analysis: JointAnalysis, decision: Decision, collectives_first: bool = False) -> Partition:
    """Split the joint graph as `decision` says.

    Saved nodes that the backward does not need are left out, and sizes that its inputs mention are added. A recomputed
    random op starts from a state that the forward records.

    Raises:
        PartitionError: if the backward needs a value that is neither saved nor may be recomputed.
    """
    needed = needed_in_backward(analysis, decision)
    if decision.compact is None:
        decision = compacted(analysis, decision, analysis.backward | (needed - decision.saved.keys()))
        needed = needed_in_backward(analysis, decision)
    kept = {node: decision.saved[node] for node in analysis.in_order(decision.saved) if node in needed}
    kept = {**kept, **sizes_to_bind(analysis, kept)}
    sizes = sizes_to_read(analysis, kept)
    states = [node for node in analysis.in_order(decision.recomputed) if op_table.draws(node) and node in needed]
    crossing = [crossing_of(analysis, node, decision) for node in analysis.in_order(kept)]
    crossing += [Crossing(node, Saved(random_state.state_name(node)), is_state=True) for node in states]
    crossing += sizes
    slots = [value.slot for value in crossing]
    signature = analysis.joint.signature
    order = analysis.in_order(analysis.backward)
    order = schedule.collectives_first(order) if collectives_first else order
    forward = GraphHalf(_forward_module(analysis, crossing), forward_signature(signature, slots))
    backward = GraphHalf(_backward_module(analysis, crossing, order), backward_signature(signature, slots))
    saved = [described(analysis, value, kept.get(value.node)) for value in crossing]
    return Partition(forward, backward, tuple(_tensors_first(saved)), tuple(_recomputed(analysis, decision, needed)))


def needed_in_backward(analysis: JointAnalysis, decision: Decision) -> set[fx.Node]:
    """All forward and unclaimed nodes that the backward needs, saved or recomputed.

    Raises:
        PartitionError: if one of them is neither saved nor may be recomputed.
    """
    outside = analysis.forward | analysis.unclaimed
    readers = [arg for node in analysis.backward for arg in node.all_input_nodes]
    stack = [node for node in (*readers, *analysis.gradients) if isinstance(node, fx.Node)]
    needed: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node in needed or node not in outside:
            continue
        needed.add(node)
        if node not in decision.saved:
            _check_can_recompute(analysis, node, decision)
            stack.extend(node.all_input_nodes)
    return needed


def _recomputed(analysis: JointAnalysis, decision: Decision, needed: set[fx.Node]) -> Iterator[RecomputedValue]:
    for node in analysis.in_order(decision.recomputed):
        if node in analysis.forward and node in needed:
            traffic = 0 if analysis.is_view(node) else costs.traffic(node)
            yield RecomputedValue(node.name, decision.recomputed[node], user_line(node), traffic, costs.flops(node))


def _tensors_first(values: list[SavedValue]) -> list[SavedValue]:
    return sorted(values, key=lambda value: isinstance(value.slot, SavedSymInt))


def _check_can_recompute(analysis: JointAnalysis, node: fx.Node, decision: Decision) -> None:
    is_tagged = op_table.communicates(node.target) and analysis.tagged.get(node) is tags.RECOMPUTE
    if node in decision.recomputed and (is_tagged or random_state.can_record(node)):
        return
    if node.op == "placeholder" or node in analysis.copied or node in analysis.closed_over:
        problem = "is an input of the forward"
    elif node.op == "call_function" and op_table.runs_once(node.target):
        problem = "may run only once"
    else:
        return
    raise PartitionError(f"the backward needs {node.name}, which is not saved and {problem}; save it")


# --- The two graphs --------------------------------------------------------------------------------------------------


def _forward_module(analysis: JointAnalysis, crossing: list[Crossing]) -> fx.GraphModule:
    graph = fx.Graph()
    run = dependencies_of([*analysis.forward, *(value.node for value in crossing)])
    recorded = {value.node for value in crossing if value.is_state}
    env: dict[fx.Node, fx.Node] = {}
    states: dict[fx.Node, fx.Node] = {}
    for node in analysis.in_order(run):
        env[node] = _copy_node(graph, node, env, "is_forward")
        if node in recorded:
            env[node], states[node] = random_state.record(env[node], node)

    def handed_out(value: Crossing) -> fx.Node:
        if value.is_state:
            return states[value.node]
        if value.dim is not None:
            arguments = (env[value.node], value.dim)
            return _call(graph, torch.ops.aten.sym_size.int, arguments, value.value, value.slot.name)
        if value.is_slice:
            return _insert_dense_copy(env[value.node], value)
        if value.is_offloaded:
            return offload_nodes.send(env[value.node], value.slot.name, value.value)
        copied = value.node in analysis.copied
        return insert_copy(env[value.node], value.slot.name) if copied else env[value.node]

    ordered = [handed_out(value) for value in _in_signature_order(crossing, tensors_first=True)]
    results = fx.map_arg(list(analysis.results), lambda node: env[node])
    graph.output((*results, *ordered))
    return _module(analysis, graph)


def _backward_module(analysis: JointAnalysis, crossing: list[Crossing], order: list[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    states: dict[fx.Node, fx.Node] = {}
    hosts: dict[fx.Node, fx.Node] = {}
    given_or_made = ChainMap(env, hosts)
    for value in _in_signature_order(crossing, tensors_first=False):
        placeholder = _placeholder(graph, value)
        if value.dim is None:
            given = states if value.is_state else hosts if value.is_offloaded else env
            given[value.node] = placeholder
    for node in analysis.tangents:
        env[node] = _placeholder(graph, Crossing(node, Saved(node.name)))
    of_slices = _views_of(analysis, {value.node for value in crossing if value.is_slice})
    gradients = [node for node in analysis.gradients if isinstance(node, fx.Node)]
    for node in (*order, *gradients):
        for missing in _missing(analysis, node, given_or_made):
            for arg in missing.all_input_nodes:
                if arg in hosts:
                    env[arg] = offload_nodes.fetch(graph, hosts.pop(arg), arg)
            env[missing] = _copy_node(graph, missing, env, "is_backward")
            if missing in of_slices:
                env[missing].meta["val"] = retrace(env[missing])
            if missing in states:
                env[missing] = random_state.rerun(graph, env[missing], states[missing])
    graph.output(tuple(fx.map_arg(list(analysis.gradients), lambda node: env[node])))
    return _module(analysis, graph)


def _module(analysis: JointAnalysis, graph: fx.Graph) -> fx.GraphModule:
    return LazyGraphModule(analysis.joint.module, graph)


def _in_signature_order(values: list[Crossing], tensors_first: bool) -> list[Crossing]:
    return sorted(values, key=lambda value: isinstance(value.slot, SavedSymInt) == tensors_first)


def _missing(analysis: JointAnalysis, node: fx.Node, env: Mapping[fx.Node, fx.Node]) -> list[fx.Node]:
    """The node and its ancestors that have no copy yet, in the order of the joint graph."""
    return analysis.in_order(dependencies_of([node], known=env))


def _copy_node(graph: fx.Graph, node: fx.Node, env: Mapping[fx.Node, fx.Node], tag: str) -> fx.Node:
    copied = copy_node(graph, node, env.__getitem__)
    copied.meta["partitioner_tag"] = tag
    return copied


def _placeholder(graph: fx.Graph, value: Crossing) -> fx.Node:
    placeholder = graph.placeholder(value.slot.name)
    meta = {} if value.is_state or value.dim is not None else value.node.meta
    placeholder.meta = {**meta, "val": value.value, "partitioner_tag": "is_backward"}
    return placeholder


def _views_of(analysis: JointAnalysis, slices: set[fx.Node]) -> set[fx.Node]:
    """The views of densely saved slices: their strides differ from the traced ones."""
    views: set[fx.Node] = set()
    for node in analysis.nodes if slices else ():
        if node not in slices and analysis.is_view(node) and node.args[0] in views | slices:
            views.add(node)
    return views


def _insert_dense_copy(node: fx.Node, value: Crossing) -> fx.Node:
    with node.graph.inserting_after(node):
        return _call(node.graph, torch.ops.aten.clone.default, (node,), value.value, value.slot.name)


def insert_copy(node: fx.Node, name: str) -> fx.Node:
    """A copy of `node`'s value with the same strides, made before later nodes can overwrite it."""
    graph, value = node.graph, node.meta["val"].detach()
    copy = value.new_empty_strided(value.shape, value.stride())
    dense = costs.extent_bytes(value) == costs.dense_bytes(value)
    with graph.inserting_before((_last_placeholder(graph) if node.op == "placeholder" else node).next):
        if dense:
            return _call(graph, torch.ops.aten.clone.default, (node,), copy, name)
        size = _number_arguments(node, torch.ops.aten.sym_size.int, value.shape)
        stride = _number_arguments(node, torch.ops.aten.sym_stride.int, value.stride())
        empty = torch.ops.aten.new_empty_strided.default
        memory = _call(graph, empty, (node, size, stride), copy, f"{name}_memory")
        return _call(graph, torch.ops.aten.copy.default, (memory, node), copy, name)


def _number_arguments(node: fx.Node, read: Any, values: Iterable[Any]) -> list[Any]:
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
