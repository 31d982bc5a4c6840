"""Folds each call of a kept function into one node, and the ops of its backward into another one.

    t = t(w); mm = mm(x, t)                                        linear = linear(x, w)
    t_1 = t(tangent); gw = t(mm(t_1, x)); gx = mm(tangent, w)      linear_backward = linear_backward(tangent, x, w)

The backward node takes the tangent of the result, and of the forward only arguments and results of the call: what it needs
between them is recomputed inside. So saving and recomputing concern the call as a whole. Gradients are those of the trace,
with their sums outside. A backward that the function itself runs, as a training step does, has a node of its own.

A call stays taken apart where one node would not do: it draws random numbers or has an effect, others use a value between
arguments and result, more than one tangent enters its backward, or autocast casts between its ops.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.graph.dependents import dependents_of
from aotgrad.graph.gradient_masks import narrow
from aotgrad.graph.kept_calls import MARK, KeptBackward, KeptCall, Run
from aotgrad.ir import JointGraph
from aotgrad.passes.backward_of_call import StaysApart, is_of_any_backward
from aotgrad.passes.common_subexpressions import CommonSubexpressionElimination
from aotgrad.passes.dead_code import erase_unused, must_stay
from aotgrad.passes.fold_call import fold
from aotgrad.passes.known_values import read_sizes_of_inputs
from aotgrad.passes.parts_of_call import Dependents, PartsOfCall
from aotgrad.slots import Tangent

log = logging.getLogger("aotgrad.backends.kept")


def keep_calls(joint: JointGraph, calls: Sequence[KeptCall]) -> JointGraph:
    """Fold the calls that were noted in the trace of a joint graph."""
    if not calls:
        return joint
    joint = CommonSubexpressionElimination(merges=is_of_second_run).apply(joint)
    graph = joint.module.graph
    read_sizes_of_inputs(joint)
    # A result or gradient that nobody reads may be a view that the plan makes of what others read.
    results = {node for call in calls for node in (*call.computed, *call.noted_gradients())}
    erase_unused(graph, lambda node: node in results or must_stay(node))
    dependents = gradients_of_backwards(joint, calls)
    parts: dict[KeptCall, list[fx.Node]] = {}
    for node in graph.nodes:
        if MARK in node.meta and node.op == "call_function" and not op_table.is_symbolic_value(node):
            parts.setdefault(node.meta[MARK], []).append(node)
    moved, folded = dict[fx.Node, fx.Node](), set[fx.Node]()
    for call in calls:
        try:
            fold(PartsOfCall.of(call, parts.get(call, ()), moved, dependents), moved)
            folded.update(parts[call])
        except StaysApart as reason:
            log.debug("%s is taken apart: %s", op_table.short_name(call.function), reason)
    erase_unused(graph, lambda node: node not in folded and must_stay(node))
    for node in graph.nodes:
        node.meta.pop(MARK, None)
        if isinstance(node.target, KeptBackward):
            narrow(node)
    return joint


def gradients_of_backwards(joint: JointGraph, calls: Sequence[KeptCall]) -> Dependents:
    """The gradients in each backward that computes some of the calls, with those that it starts from."""
    found: dict[Run, set[fx.Node]] = {run: set(noted.starts) for call in calls for run, noted in call.gradients.items()}
    found[None] = dependents_of([node for slot, node in joint.placeholders.items() if isinstance(slot, Tangent)])
    for node in joint.module.graph.nodes:
        if node.meta.get("inner_gradient"):
            found.setdefault(node.meta["inner_backward"], set()).add(node)
    return found


def is_of_second_run(node: fx.Node) -> bool:
    """Whether a checkpoint computes the node a second time, for the backward."""
    return is_of_any_backward(node) and node.meta.get("ac_graph_id") is not None
