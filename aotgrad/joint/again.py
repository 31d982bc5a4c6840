"""The joint graph of a function that was traced before, when more of its inputs required grad: the earlier one, cut down.

In: a function that was captured anew, and the capture and joint graph of an earlier plan. Out: a `JointGraph`, or `None`.

    earlier    x, w require grad: y = x @ w; gradients of x and w
    new        x requires grad:   y = x @ w        is recorded, and the gradient of x is that of the earlier graph

Which op runs, what it saves and whether its result requires grad depends on flags, and torch's C++ says so only in a trace:
the forward is recorded with the new flags, and must come out the same, node for node. What eager saves, in which order
gradients arrive, and what a second backward may do is read off the autograd graph of that trace. What its nodes compute for
inputs that still require grad does not depend on the others: that is not traced again.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.gradient_masks import narrow_mask
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.ir import (
    Capture,
    InputAliasInfo,
    JointGraph,
    RecordedForward,
    TensorInput,
    ViewAndMutationMeta,
)
from aotgrad.joint.backward import (
    Result,
    autograd_nodes,
    backward_segments,
    mutated_inputs,
    recorded_forward,
    reject_foreign_leaves,
    result_of,
    segmentation_of,
    static_inputs,
    views_outside,
    with_saving_nodes,
)
from aotgrad.joint.segments import edges_of, engine_order
from aotgrad.slots import Gradient, Primal, Tangent


class Earlier(Protocol):
    """What is known of an earlier plan."""

    @property
    def capture(self) -> Capture: ...

    @property
    def meta(self) -> ViewAndMutationMeta: ...

    @property
    def joint(self) -> JointGraph: ...


def joint_again(
    capture: Capture, meta: ViewAndMutationMeta, earlier: Earlier, grad_segments: int | str
) -> JointGraph | None:
    """The joint graph of `capture` as a part of an earlier one; `None` if it has to be traced.

    It has to be if the forwards differ, if an input requires grad that did not, or if the backward is not one segment of
    torch's own autograd nodes: a custom function asks which gradients are needed, a hook or a check may belong to one.
    """
    if not (is_plain(capture, meta) and is_plain(earlier.capture, earlier.meta) and has_plain_backward(earlier.joint)):
        return None
    if not same_inputs(capture, earlier.capture) or changes(meta) != changes(earlier.meta):
        return None
    with capture.trace.active():
        results = [result_of(capture, meta, slot) for slot in meta.forward_results()]
        outputs = [result for result in results if result.differentiable is not None]
        if tuple(Tangent(result.slot) for result in outputs) != earlier.joint.signature.tangents:
            return None
        if not same_forward(recorded_forward(capture, results), earlier.joint):
            return None
        return cut_down(capture, meta, outputs, earlier.joint, grad_segments)


def cut_down(
    capture: Capture, meta: ViewAndMutationMeta, outputs: Sequence[Result], earlier: JointGraph, grad_segments: int | str
) -> JointGraph | None:
    """`earlier` without the gradients that the outputs of `capture` do not lead to."""
    roots: list[Any] = [output.differentiable for output in outputs]
    nodes = sorted(autograd_nodes(roots), key=torch_compat.node_sequence_nr, reverse=True)
    if not all(map(is_torchs_own, nodes)) or any(views_outside(capture, meta)):
        return None
    reject_foreign_leaves(capture, roots)
    segmentation = segmentation_of(capture, outputs, (), grad_segments)
    if segmentation is not None and segmentation.count > 1:
        return None
    arriving = [Primal(k) for k in order_of_arrival(nodes, capture.primals)]
    wanted = list(map(Gradient, arriving))
    graph = graph_with(earlier, wanted)
    if graph is None:
        return None
    flowing = [slot for slot in earlier.signature.gradients if slot in wanted]
    entry = dict.fromkeys(earlier.signature.tangents, 0)
    segments = backward_segments(entry, flowing, [(0, primal) for primal in arriving], frozenset())
    segments = with_saving_nodes(capture, outputs, segments, segmentation)
    static, mutated = static_inputs(capture), mutated_inputs(capture, meta)
    module = LazyGraphModule(earlier.module, graph)
    return JointGraph(module, earlier.signature, static, mutated, segments=segments, recorded=earlier.recorded)


# --- Which functions -------------------------------------------------------------------------------------------------


def is_plain(capture: Capture, meta: ViewAndMutationMeta) -> bool:
    """Whether nothing but autograd's own nodes stands between inputs and results, and nothing was asked about values."""
    if meta.new_leaves or capture.assigned or capture.hooks or capture.output_hooks or capture.hooked_nodes or capture.joins:
        return False
    if capture.values is not None and capture.values.has_conditions:
        return False
    infos = [info for info in meta.inputs if info is not None]
    return not any(info.carries_gradient or info.mutation.metadata for info in infos)


def has_plain_backward(joint: JointGraph) -> bool:
    """Whether a joint graph is one segment that leads to primals only, and nothing in it but random ops runs unasked."""
    if joint.recorded is None or len(joint.segments) != 1 or joint.private_inputs:
        return False
    if any(nodes.error for nodes in joint.segments[0].saving):
        return False
    if any(gradient.segment is not None or not isinstance(gradient.of, Primal) for gradient in joint.signature.gradients):
        return False
    called = (node.target for node in joint.module.graph.nodes if node.op != "get_attr")
    return not any(op_table.has_effect(target) or op_table.is_opaque(target) for target in called)


def same_inputs(capture: Capture, earlier: Capture) -> bool:
    """Whether two functions take the same inputs, of which those that require grad in `earlier` may not in `capture`."""
    if len(capture.inputs) != len(earlier.inputs) or capture.convention.order != earlier.convention.order:
        return False
    facts = [[facts_of(spec) for spec in each.inputs] for each in (capture, earlier)]
    return facts[0] == facts[1] and None not in facts[0] and all(map(may_use_again, capture.inputs, earlier.inputs))


def may_use_again(spec: Any, earlier: Any) -> bool:
    """Whether a backward that was traced for the input `earlier` has the gradient that one for `spec` needs, if any."""
    return spec.requires_grad <= earlier.requires_grad


def facts_of(spec: Any) -> Any:
    """What a trace takes from an input besides whether it requires grad; `None` for one that is no plain tensor."""
    if type(spec) is not TensorInput or spec.fake.layout is not torch.strided:
        return None
    numbers = (*spec.fake.size(), *spec.fake.stride(), spec.fake.storage_offset())
    if not all(type(number) is int for number in numbers):
        return None
    bits = (spec.fake.is_conj(), spec.fake.is_neg(), spec.is_static)
    return spec.fake.dtype, spec.fake.device, spec.fake.dim(), numbers, bits


def changes(meta: ViewAndMutationMeta) -> list[Any]:
    """What happens to the inputs."""

    def of_input(info: InputAliasInfo | None) -> Any:
        return info and (info.mutation, info.hidden_from_autograd, info.version_bumps)

    return list(map(of_input, meta.inputs))


def is_torchs_own(node: Any) -> bool:
    """Whether an autograd node is that of a differentiable op, or of a leaf, and none of a custom function."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    return node.name() == "torch::autograd::AccumulateGrad" or re.search(r"Backward\d+$", node.name()) is not None


# --- Whether the forwards are the same -------------------------------------------------------------------------------


def same_forward(new: RecordedForward, joint: JointGraph) -> bool:
    """Whether two functions recorded the same ops with the same arguments, and return the same of their values."""
    old = joint.recorded
    if old is None or len(new.nodes) != len(old.nodes):
        return False
    counterpart: dict[fx.Node, fx.Node] = {}
    for (node, *described), (other, *expected) in zip(new.nodes, old.nodes, strict=True):
        if not is_same(described[2:], expected[2:], counterpart) or described[0] != expected[0]:
            return False
        targets = (described[1], expected[1]) if node not in new.constants else (new.constants[node], old.constants[other])
        if node.op != "placeholder" and targets[0] is not targets[1]:
            return False
        counterpart[node] = other
    return is_same(new.results, old.results, counterpart)


def is_same(one: Any, other: Any, counterpart: Mapping[fx.Node, fx.Node]) -> bool:
    """Whether arguments of two nodes are equal; nodes among them if one is the counterpart of the other."""
    if isinstance(one, fx.Node):
        return counterpart.get(one) is other
    if isinstance(one, (list, tuple)):
        same_length = isinstance(other, (list, tuple)) and len(one) == len(other)
        return same_length and all(is_same(a, b, counterpart) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and is_same([*one.values()], [*other.values()], counterpart)
        )
    return one is other or (type(one) is type(other) and repr(one) == repr(other))


# --- The backward ----------------------------------------------------------------------------------------------------


def order_of_arrival(nodes: Sequence[Any], primals: Sequence[Any]) -> list[int]:
    """The primals in the order in which the engine has all of their gradients, which runs `nodes` in their order."""
    index = {id(primal): k for k, primal in enumerate(primals)}

    def behind(node: Any) -> list[int]:
        leaves = (getattr(successor, "variable", None) for successor, _ in edges_of(node))
        return [index[id(leaf)] for leaf in leaves if leaf is not None]

    missing = Counter(itertools.chain.from_iterable(map(behind, nodes)))
    order: list[int] = []
    for node in nodes:
        complete = []
        for primal in behind(node):
            missing[primal] -= 1
            complete += [primal] if not missing[primal] else []
        order += [complete[position] for position in engine_order(len(complete))]
    return order


def graph_with(joint: JointGraph, wanted: Iterable[Gradient]) -> fx.Graph | None:
    """A copy of the graph with some of its gradients; `None` if it has no such one."""
    graph = fx.Graph()
    copied: Any = graph.graph_copy(joint.module.graph, {})
    results = dict(zip(joint.signature.outputs, copied, strict=True))
    if any(results.get(gradient) is None for gradient in wanted):
        return None
    dropped = set(joint.signature.gradients).difference(wanted)
    graph.output([None if slot in dropped else node for slot, node in results.items()])
    for node in reversed(graph.nodes):
        if not node.users and node.op in ("call_function", "get_attr") and not op_table.is_kept_when_dead(node.target):
            graph.erase_node(node)
        elif node.op == "call_function":
            narrow_mask(node)
    return graph
