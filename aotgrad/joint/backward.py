"""Appends the backward to a captured forward: `autograd.grad` on the still-live traced results.

In: a `Capture` and its `ViewAndMutationMeta`. Out: a `JointGraph`. The user's function is not rerun. Every backward
node gets the stack trace of the forward op whose derivative it is.

    forward   primals_1 -> sin                 results: output 0
    joint     + tangents_1, cos(primals_1) * tangents_1      + gradient of primal 0

Several results give several segments (`segments.py`). Gradients between segments become outputs of the joint graph, and
tangents, which the engine sums at run time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx as fx
from torch.autograd.graph import GradientEdge

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.graph import op_table
from aotgrad.graph.autograd_nodes import autograd_nodes
from aotgrad.graph.collectives import RunsBetween
from aotgrad.graph.dependents import dependents_of
from aotgrad.ir import (
    BackwardSegment,
    Capture,
    JointGraph,
    MemberInput,
    MutationType,
    OpenTrace,
    TensorInput,
    ViewAndMutationMeta,
)
from aotgrad.joint.attribution import NO_SEGMENTS, arrivals, attributed_to_forward, eager_dtypes
from aotgrad.joint.cases import OtherCases, join_cases, trace_other_cases
from aotgrad.joint.effects import Effects, Place, storages
from aotgrad.joint.failures import (
    OverwrittenValue,
    WrapperAtCut,
    explained,
    failing_nodes,
    passed_over,
    reject_wrapped_gradients,
)
from aotgrad.joint.gradient_order import backward_segments, gradient_rank
from aotgrad.joint.joins import Joins
from aotgrad.joint.none_gradients import WorkBehindNone, has_cuts_outside, has_work_behind_none
from aotgrad.joint.outside_views import View, views_outside
from aotgrad.joint.saved_values import (
    assigned_memory,
    bytes_without_owner,
    masks_of_nodes,
    owners_of_memory,
    saving_nodes,
    storages_by_node,
)
from aotgrad.joint.segments import (
    NOTHING_FAILS,
    UNCUT,
    WHOLE,
    Chunks,
    CutBackward,
    Cuts,
    Edge,
    ExternalView,
    Segmentation,
    ends_without_inputs,
    external_views_by_edge,
    find_segments,
    positions_of,
    single_segment,
    taken_apart,
    targets_behind,
    visited_nodes,
)
from aotgrad.slots import (
    ForwardResult,
    Gradient,
    GradientTarget,
    IntermediateBase,
    Memory,
    Primal,
    ReturnedWrapper,
    SegmentBoundary,
    SlotSignature,
    Tangent,
    UpdatedInput,
    UserOutput,
    place_of,
)
from aotgrad.subclasses.bridge import OtherGradientForm
from aotgrad.subclasses.passages import CutForm, Passage, gradient_parts


@dataclass(frozen=True)
class Result:
    """One result of the forward: its slot, its node, and its live tensor if it carries a gradient."""

    slot: ForwardResult
    node: Any
    differentiable: Any


def build_joint(capture: Capture, meta: ViewAndMutationMeta, cuts: Cuts = UNCUT) -> JointGraph:
    """The joint graph, or the plain forward graph if nothing in it requires grad.

    `cuts`: where the backward is cut.
    """
    with capture.trace.active():
        results = [result_of(capture, meta, slot) for slot in meta.forward_results()]
        outputs = [result for result in results if result.differentiable is not None]
        effects = Effects(capture, meta)
        views = list(views_outside(capture, meta))
        with capture.trace.within_contexts():
            backward = _append_possible_backward(capture, outputs, views, cuts, effects)
    results += [Result(slot, node, None) for slot, node in effects.new_results.items()]
    primals = capture.convention.primals
    gradients = (_with_part(gradient, primals) for gradient in backward.gradients)
    signature = SlotSignature(
        inputs=(*primals, *backward.tangents), outputs=(*(result.slot for result in results), *gradients)
    )
    capture.trace.graph.output([*(result.node for result in results), *backward.gradients.values()])
    if len(backward.segments) > 1:
        _read_sizes_before_tangents(capture.trace.graph, map(capture.trace.node_of, backward.tangents.values()))
    _tag_effects(capture.trace.graph)
    _number_collectives(capture.trace.graph)
    static, mutated = static_inputs(capture), mutated_inputs(capture, meta)
    mutated |= {place.index for place in backward.memory if isinstance(place, Primal)}
    module, segments = capture.trace.module(), backward.segments
    return JointGraph(
        module,
        signature,
        static,
        mutated,
        writable_inputs(capture, meta, backward),
        segments,
        memory=backward.memory,
        effects=backward.effects,
        saved_in_eager=backward.saved_in_eager & {*signature.inputs, *signature.outputs},
        eager_bytes=backward.eager_bytes,
        passages=backward.passages,
        cut_forms=backward.cut_forms,
    )


def _with_part(gradient: Gradient, primals: Sequence[Primal]) -> Gradient:
    """The gradient, whose primal says which part of which argument it belongs to."""
    return replace(gradient, of=primals[gradient.of.index]) if isinstance(gradient.of, Primal) else gradient


READS_OF_SIZES = (torch.ops.aten.sym_size.int, torch.ops.aten.sym_stride.int)


def _read_sizes_before_tangents(graph: fx.Graph, tangents: Iterable[fx.Node]) -> None:
    """Take sizes from what does not depend on tangents, where something has them: a segment has its own tangents only."""
    dependent = dependents_of(tangents)
    numbers: dict[Any, fx.Node] = {}
    places: dict[Any, tuple[fx.Node, int]] = {}
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node not in dependent:
            if isinstance(value, torch.SymInt):
                numbers.setdefault(torch_compat.expression_of(value), node)
            elif node.op == "placeholder" and isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.size()):
                    places.setdefault(torch_compat.expression_of(size), (node, dim))
        elif node.target in READS_OF_SIZES and (expression := torch_compat.expression_of(value)) in numbers:
            node.replace_all_uses_with(numbers[expression])
            graph.erase_node(node)
        elif node.target in READS_OF_SIZES and expression in places:
            node.target, node.args = torch.ops.aten.sym_size.int, places[expression]


def _tag_effects(graph: fx.Graph) -> None:
    """Tag effects and draws of the backward: without a tangent, they could be the forward's."""
    for node in graph.nodes:
        if node.meta.get("autograd_backward") and op_table.is_kept_when_dead(node.target):
            node.meta["partitioner_tag"] = "is_backward"


def _number_collectives(graph: fx.Graph) -> None:
    """Number the collectives in the order of the trace, which is that of all ranks; `verify` checks that it stays."""
    for number, node in enumerate(node for node in graph.nodes if op_table.is_collective(node.target)):
        node.meta["collective"] = number


@dataclass(frozen=True)
class AppendedBackward:
    """The live tensor of each tangent, and the node of each gradient or `None`. All empty if there is no backward.

    `memory`, `effects`, `saved_in_eager`, `eager_bytes`, `passages` and `cut_forms`: see `JointGraph`.
    """

    tangents: dict[Tangent, torch.Tensor]
    gradients: dict[Gradient, fx.Node | None]
    segments: tuple[BackwardSegment, ...]
    memory: tuple[Place | Tangent, ...] = ()
    effects: tuple[frozenset[int], ...] = ()
    saved_in_eager: frozenset[Primal | ForwardResult] = frozenset()
    eager_bytes: int | None = None
    passages: Mapping[Gradient, Passage] = field(default_factory=dict)
    cut_forms: Mapping[SegmentBoundary, CutForm] = field(default_factory=dict)


def _append_possible_backward(
    capture: Capture, outputs: Sequence[Result], views: Sequence[View], cuts: Cuts, effects: Effects
) -> AppendedBackward:
    """The backward of the outputs, without nodes that raise in eager since the function overwrote a saved value.

    Raises:
        CaptureError: such a node cannot be left out.
    """
    forward = set(capture.trace.graph.nodes)
    forget_numbers = capture.trace.forgetting_later_numbers()
    failing: dict[Any, str] = {}

    def undo() -> None:
        _erase_gradients(capture.trace.graph, forward)
        forget_numbers()

    while True:
        try:
            with effects.traced():
                appended = _append_backward(capture, outputs, views, cuts, effects, failing)
            if not effects.grown:
                return appended
            undo()
        except (WrapperAtCut, WorkBehindNone) as error:
            undo()
            if cuts.is_whole:
                raise CaptureError(str(error)) from None
            cuts = WHOLE
        except OverwrittenValue as error:
            undo()
            if error.node in failing:
                raise CaptureError(
                    "a value is changed in place that the backward of an op on a list (torch._foreach_add, ...) needs, and "
                    "of such ops autograd does not show what they saved; change a clone() of it"
                ) from error
            found = failing_nodes((output.differentiable for output in outputs), failing) or {error.node: str(error)}
            failing |= passed_over(found)


def _append_backward(
    capture: Capture,
    outputs: Sequence[Result],
    views: Sequence[View],
    cuts: Cuts,
    effects: Effects,
    failing: Mapping[Any, str] = NOTHING_FAILS,
) -> AppendedBackward:
    if not outputs:
        reject_hooks_outside(capture, {}, {}, (), failing)
        return AppendedBackward({}, {}, ())
    segmentation = segmentation_of(capture, outputs, views, cuts, failing, effects)
    first = len(effects.cells)
    tangents = {Tangent(result.slot): _add_tangent(capture.trace, first + k, result) for k, result in enumerate(outputs)}
    with capture.trace.watched_draws_of_backward():
        found = _find_gradients(capture, outputs, tangents, segmentation, effects)
    if segmentation is not None:
        segmentation, found = _without_idle_segments(capture, segmentation, found, effects)
    undefined = _gradients_behind_failures(segmentation, found.gradients)
    whole = segmentation_or_whole(capture, outputs, segmentation)
    collectives = {node: ops for node, ops in effects.collectives().items() if node in whole.segment_of}
    alone = () if segmentation is None else segmentation.alone
    undefined += _gradients_behind_effects(whole, found, [*alone, *collectives])
    cases = _other_cases(capture, outputs, whole, found)
    undefined += [slot for node in cases for slot in node.slots() if found.gradients.get(slot) is None]
    gradients = {**found.gradients, **dict.fromkeys(undefined)}
    flowing = [slot for slot, value in gradients.items() if value is not None or slot in undefined]
    materialized = segmentation.materialized if segmentation else frozenset()
    segments = backward_segments(found.entry, flowing, found.left, materialized)
    _reject_new_draws(capture, list(found.tangents.values()))
    reject_wrapped_gradients(gradients)
    nodes = {slot: None if value is None else capture.trace.node_of(value) for slot, value in gradients.items()}
    nodes.update(join_cases(capture.trace, cases, found.tangents, nodes))
    appended = AppendedBackward(found.tangents, nodes, segments, passages=found.passages, cut_forms=found.cut_forms)
    note_when_they_run(collectives, whole, segments, entered_edges(outputs, whole, found.tangents))
    appended = with_saved_values(capture, outputs, appended, whole, effects)
    return appended if segmentation is None else _with_effects(capture, appended, segmentation, effects)


def _without_idle_segments(
    capture: Capture, segmentation: Segmentation, found: FoundGradients, effects: Effects
) -> tuple[Segmentation, FoundGradients]:
    """Leave out segments that no gradient reaches: a custom function returns `None` for some of its inputs.

    Raises:
        CaptureError: such a segment changes something in place.
        WorkBehindNone: eager computes or communicates there.
    """
    alive = sorted(set(found.entry.values()))
    if len(alive) == segmentation.count:
        return segmentation, found
    if any(segmentation.segment_of[node] not in alive for node in segmentation.alone):
        raise CaptureError(
            "the backward of an autograd function changes a tensor in place or draws random numbers, and gets no gradient, "
            "since that of another one returns None; return zeros there"
        )
    if has_work_behind_none(segmentation, found.gradients, alive, effects.collectives()):
        error = WorkBehindNone()
        raise CaptureError(str(error)) if has_cuts_outside(segmentation) else error
    number = {old: new for new, old in enumerate(alive)}
    gradients = {replace(slot, segment=number[slot.segment or 0]): value for slot, value in found.gradients.items()}
    passages = {replace(slot, segment=number[slot.segment or 0]): each for slot, each in found.passages.items()}
    if len(alive) == 1:
        gradients = _of_one_segment(capture, gradients)
        passages = {replace(slot, segment=None): each for slot, each in passages.items()}
    entry = {tangent: number[segment] for tangent, segment in found.entry.items()}
    left = [(number[segment], primal) for segment, primal in found.left if segment in number]
    kept = replace(found, gradients=gradients, entry=entry, left=left, passages=passages)
    return segmentation.renumber(number), kept


def _with_effects(
    capture: Capture, appended: AppendedBackward, segmentation: Segmentation, effects: Effects
) -> AppendedBackward:
    """The backward with the memory that its segments change."""
    placeholders = {capture.trace.node_of(value): tangent for tangent, value in appended.tangents.items()}
    cells = {Tangent(Memory(k)): cell.tensor for k, cell in enumerate(effects.cells.values())}
    values: dict[Gradient, fx.Node | None] = {}
    segments = list(appended.segments)
    for number, change, value in effects.outcome(placeholders, segmentation.segment_of):
        values[Gradient(change.memory, number if segmentation.count > 1 else None)] = value
        segments[number] = replace(segments[number], changes=(*segments[number].changes, change))
    return replace(
        appended,
        tangents={**cells, **appended.tangents},
        gradients={**appended.gradients, **values},
        segments=tuple(segments),
        memory=tuple(effects.memory(placeholders)),
        effects=segmentation.effects,
    )


def _gradients_behind_effects(segmentation: Segmentation, found: FoundGradients, nodes: Iterable[Any]) -> list[Gradient]:
    """The missing gradients behind `nodes`. The nodes have effects, so they also run if one of these gradients is wanted."""
    there = {(gradient.segment or 0, gradient.of) for gradient, value in found.gradients.items() if value is not None}
    entered = {tangent.of for tangent in found.tangents}
    ends = {edge: to for edge, to in segmentation.targets.items() if isinstance(to, Primal) or to in entered}
    missing: dict[Gradient, None] = {}
    for node in nodes:
        number = segmentation.segment_of[node]
        left = {edge: target for edge, target in ends.items() if segmentation.leaves(number, edge)}
        for target in targets_behind(node, left):
            if (number, target) not in there:
                missing[Gradient(target, number if segmentation.count > 1 else None)] = None
    return list(missing)


@dataclass(frozen=True)
class FoundGradients:
    """The tangents of results and cuts, the gradients, the segment that each tangent enters, and the order in which
    segments complete the gradients of primals.

    `passages`, `cut_forms`: see `JointGraph`.
    """

    tangents: dict[Tangent, torch.Tensor]
    gradients: Mapping[Gradient, torch.Tensor | None]
    entry: dict[Tangent, int]
    left: list[tuple[int, Primal]]
    passages: Mapping[Gradient, Passage] = field(default_factory=dict)
    cut_forms: Mapping[SegmentBoundary, CutForm] = field(default_factory=dict)


def _find_gradients(
    capture: Capture,
    outputs: Sequence[Result],
    tangents: dict[Tangent, torch.Tensor],
    segmentation: Segmentation | None,
    effects: Effects,
) -> FoundGradients:
    roots = [result.differentiable for result in outputs]
    with arrivals(capture.primals) as arrived, capture.trace.noting_gradients(roots):
        if _is_one_piece(segmentation) and not capture.joins and not capture.assigned:
            found = enumerate(_gradients(capture, outputs, list(tangents.values()), effects))
            gradients = {Gradient(Primal(k)): gradient for k, gradient in found}
            return FoundGradients(tangents, gradients, dict.fromkeys(tangents, 0), [(0, Primal(k)) for k in arrived])
        assert segmentation is not None, "where gradients are joined, it says at which edges"
        found = _gradients_of_segments(capture, outputs, tangents, segmentation, effects)
    if segmentation.count > 1:
        return found
    passages = {replace(slot, segment=None): passage for slot, passage in found.passages.items()}
    return replace(found, gradients=_of_one_segment(capture, found.gradients), passages=passages)


def _other_cases(
    capture: Capture, outputs: Sequence[Result], segmentation: Segmentation, found: FoundGradients
) -> list[OtherCases]:
    """The cases of custom functions whose computation depends on which gradients arrive."""
    if not segmentation.deciding:
        return []
    entered = entered_edges(outputs, segmentation, found.tangents)
    roots = [result.differentiable for result in outputs]
    with attributed_to_forward(capture.trace, roots, segmentation.segment_of), eager_dtypes():
        return trace_other_cases(segmentation, entered, found.tangents, list(found.gradients))


def _is_one_piece(segmentation: Segmentation | None) -> bool:
    """Whether one call of the engine computes all gradients."""
    return segmentation is None or (segmentation.count == 1 and not segmentation.external_views)


def _gradients_behind_failures(
    segmentation: Segmentation | None, gradients: Mapping[Gradient, torch.Tensor | None]
) -> list[Gradient]:
    """The gradients that only failing nodes of a segment lead to: they are undefined, and raise if they are wanted."""
    if segmentation is None:
        return []
    failures, is_one = segmentation.failures.items(), segmentation.count == 1
    found = [(None if is_one else segmentation.segment_of[node], to) for node, each in failures for to in each.targets]
    pairs = sorted(set(found), key=lambda pair: gradient_rank(Gradient(pair[1], pair[0] or 0)))
    there = {(gradient.segment, gradient.of) for gradient, value in gradients.items() if value is not None}
    return [Gradient(target, segment) for segment, target in pairs if (segment, target) not in there]


def _of_one_segment(capture: Capture, gradients: Mapping[Gradient, Any]) -> dict[Gradient, torch.Tensor | None]:
    """One gradient for each primal, `None` where there is none, and those of views."""
    found = {replace(gradient, segment=None): value for gradient, value in gradients.items()}
    return {**{Gradient(primal): None for primal in capture.convention.primals}, **found}


def with_saved_values(
    capture: Capture,
    outputs: Sequence[Result],
    appended: AppendedBackward,
    segmentation: Segmentation,
    effects: Effects,
) -> AppendedBackward:
    """The backward with the values that eager saves."""
    entered = entered_edges(outputs, segmentation, appended.tangents)
    # What is read of a node is a functional tensor.
    with torch_compat.disable_proxy_modes_tracing(), torch_compat.recomputed_once():
        assigned = assigned_memory(capture)
        memory = {storage: {cell.place} for storage, cell in effects.cells.items()}
        for storage, primal in assigned.items():
            memory.setdefault(storage, set()).add(primal)
        saved = storages_by_node(segmentation, memory)
        saving = saving_nodes(segmentation, appended.segments, entered, saved, memory)
        owners = owners_of_memory(capture, {result.slot: result.differentiable for result in outputs})
    # A value saved in memory that an input is given may be the input.
    places = (each[storage] for storage in set().union(*saved.values()) for each in (owners, assigned) if storage in each)
    segments = tuple(replace(segment, saving=nodes) for segment, nodes in zip(appended.segments, saving, strict=True))
    return replace(
        appended,
        segments=segments,
        saved_in_eager=frozenset(places),
        eager_bytes=bytes_without_owner(saved, {*owners, *assigned}),
    )


def segmentation_or_whole(capture: Capture, outputs: Sequence[Result], segmentation: Segmentation | None) -> Segmentation:
    """The segmentation, or that of a backward that is obviously one segment."""
    return single_segment(result_edges(outputs), _input_edges(capture, outputs)) if segmentation is None else segmentation


def result_edges(outputs: Sequence[Result]) -> dict[ForwardResult, Edge]:
    return {result.slot: torch_compat.gradient_edge(result.differentiable) for result in outputs}


def entered_edges(outputs: Sequence[Result], segmentation: Segmentation, tangents: Iterable[Tangent]) -> dict[Tangent, Edge]:
    """Where each tangent enters."""
    edges: dict[Any, Edge] = {target: edge for edge, target in segmentation.targets.items()}
    edges.update(result_edges(outputs))
    return {tangent: edges[place_of(tangent.of)] for tangent in tangents}


def note_when_they_run(
    collectives: Mapping[Any, Sequence[fx.Node]],
    segmentation: Segmentation,
    segments: Sequence[BackwardSegment],
    edges: Mapping[Tangent, Edge],
) -> None:
    """Record, for each collective and each wait of the backward, which tangents and gradients eager's node lies between."""
    tangents, gradients = masks_of_nodes(segmentation, segments, edges) if collectives else ({}, {})
    for node, ops in collectives.items():
        segment = segments[segmentation.segment_of[node]]
        reached = frozenset(slot for k, slot in enumerate(segment.tangents) if tangents[node] >> k & 1)
        led = frozenset(slot for k, slot in enumerate(segment.gradients) if gradients[node] >> k & 1)
        for op in ops:
            op.meta["runs_between"] = RunsBetween(reached, led)


def segmentation_of(
    capture: Capture,
    outputs: Sequence[Result],
    views: Sequence[View],
    cuts: Cuts,
    failing: Mapping[Any, str] = NOTHING_FAILS,
    effects: Effects | None = None,
) -> Segmentation | None:
    """The segments of the backward; `None` if it is obviously one segment, as for one result."""
    writing = effects is not None and effects.any
    is_plain = not (capture.joins or capture.assigned or views or failing or writing or capture.nodes_with_hooks)
    if len(outputs) == 1 and cuts.grad_segments == 1 and is_plain and not cuts.is_whole:
        return None
    inputs = _input_edges(capture, outputs)
    results = {result.slot: torch_compat.gradient_edge(result.differentiable) for result in outputs}
    if cuts.is_whole:
        views = [view for view in views if view.taker is None]
    bases = [tuple(results[base] for base in view.bases if base in results) for view in views]
    external_views = list(map(external_view, views, bases))
    reject_hooks_outside(capture, results, inputs, external_views, failing)
    if cuts.is_whole and not (views or writing):
        return single_segment(results, inputs, failing)
    positions = (
        positions_of(effects.group_of, results, inputs, external_views, failing) if effects is not None and writing else ()
    )
    chunks = cut_into(capture, cuts.grad_segments)
    found = find_segments(results, inputs, chunks, external_views, failing, positions, cuts.joins_results)
    assert found is not None or not writing, "a result that is an input is no result of the graph"
    return single_segment(results, inputs, failing) if found is None and failing else found


def external_view(view: View, bases: Sequence[Edge]) -> ExternalView:
    if isinstance(view.slot, ReturnedWrapper):
        return taken_apart(view.slot, view.taker, bases)
    return ExternalView(view.slot, view.edge, tuple(bases))


def reject_hooks_outside(
    capture: Capture,
    results: Mapping[ForwardResult, Edge],
    inputs: Mapping[Edge, Primal],
    external_views: Sequence[ExternalView],
    failing: Mapping[Any, str],
) -> None:
    """Raise for a hook of an autograd node outside of the graph.

    Raises:
        CaptureError: the hook would not be called.
    """
    inside = visited_nodes(
        [node for node, _ in results.values()], inputs, external_views_by_edge(external_views, inputs), failing
    )
    if not capture.nodes_with_hooks.issubset(inside):
        raise CaptureError(
            "the function hooks the autograd node of an argument, or of a view that it returns (x.grad_fn.register_hook), "
            "which is not that of the call; use register_hook() of the tensor, or do this outside of the compiled function"
        )


def cut_into(capture: Capture, grad_segments: int | str) -> Chunks:
    """The chunks that the option asks for."""
    if isinstance(grad_segments, int):
        return grad_segments
    inputs = enumerate(capture.inputs)
    wanted = {k: spec.fake for k, spec in inputs if isinstance(spec, TensorInput) and spec.requires_grad}
    return {Primal(k): gradient_bytes(fake) for k, fake in wanted.items()}


def gradient_bytes(fake: torch.Tensor) -> int:
    """The bytes of a gradient, or 0 if they depend on values."""
    return 0 if torch_compat.has_unknown_sizes(fake) else math.prod(torch_compat.hints(fake.size())) * fake.itemsize


def _input_edges(capture: Capture, outputs: Sequence[Result]) -> dict[Edge, Primal]:
    """The edge of each primal's gradient: at the leaf, or where the history of the argument starts."""
    entered = enumerate(capture.before[: len(capture.primals)])
    histories = {before.grad_fn: k for k, before in entered if before is not None and before.grad_fn}
    leaves = {id(primal): k for k, primal in enumerate(capture.primals)}
    edges = {(node, 0): Primal(k) for node, k in histories.items()}
    for node in autograd_nodes(result.differentiable for result in outputs):
        if (leaf := getattr(node, "variable", None)) is not None and id(leaf) in leaves:
            edges[node, 0] = Primal(leaves[id(leaf)])
    edges.update(Joins.of(capture.joins).edges)
    return edges


def _gradients_of_segments(
    capture: Capture,
    outputs: Sequence[Result],
    tangents: dict[Tangent, torch.Tensor],
    segmentation: Segmentation,
    effects: Effects,
) -> FoundGradients:
    """The gradients of each segment, with the tangents of the cuts."""
    cuts: dict[Tangent, torch.Tensor] = {}
    forms: dict[SegmentBoundary, CutForm] = {}

    def enter(cut: SegmentBoundary, gradient: torch.Tensor) -> torch.Tensor:
        if not torch_compat.is_wrapper_subclass(gradient):
            return enter_plain(cut, gradient)
        form = CutForm.of(gradient, capture)
        if form is None or not (has_cuts_outside(segmentation) or segmentation.alone):
            raise WrapperAtCut(
                f"the gradient of a {type(gradient).__name__} passes between two parts of the backward that run separately"
            )
        forms[cut], parts = form, gradient_parts(gradient)
        return form.assemble({k: enter_plain(replace(cut, part=k), part) for k, part in parts.items()}, capture.primals)

    def enter_plain(cut: SegmentBoundary, gradient: torch.Tensor) -> torch.Tensor:
        name = f"tangents_{len(effects.cells) + len(tangents) + len(cuts) + 1}"
        return cuts.setdefault(Tangent(cut), capture.trace.add_placeholder(name, gradient))

    with CutBackward(segmentation, enter, joins=Joins.of(capture.joins)) as cut_backward:
        ends = [*ends_without_inputs(segmentation), *accumulators(capture, segmentation)]
        _gradients(capture, outputs, list(tangents.values()), effects, ends, segmentation.segment_of)
    with eager_dtypes(), attributed_to_forward(capture.trace, ()):
        terms = {gradient: fitted(capture, gradient, term) for gradient, term in cut_backward.terms().items()}
        passages = dict(_passages(cut_backward.collected, segmentation))
    gradients = {gradient: terms[gradient] for gradient in sorted(terms, key=gradient_rank)}
    entered = {**tangents, **cuts}
    entry = _segments_of_tangents(outputs, entered, segmentation)
    return FoundGradients(entered, gradients, entry, list(cut_backward.left), passages, forms)


def fitted(capture: Capture, gradient: Gradient, value: torch.Tensor) -> torch.Tensor:
    """The gradient in the shape of its result, which `unsqueeze_` may have changed under `no_grad`."""
    result = capture.outputs[gradient.of.index] if isinstance(gradient.of, UserOutput) else value
    return value if result.dim() == value.dim() else value.view(result.shape)


def _passages(
    collected: Mapping[tuple[int, GradientTarget], Sequence[torch.Tensor]], segmentation: Segmentation
) -> Iterator[tuple[Gradient, Passage]]:
    """How gradients pass through wrapper subclasses among the results.

    Raises:
        WrapperAtCut: the gradient of a changed argument has another form.
    """
    for (segment, target), terms in collected.items():
        for term, gradient in enumerate(terms if isinstance(target, ReturnedWrapper) else ()):
            try:
                yield Gradient(target, segment, term), Passage.of(segmentation.takers[target], gradient)
            except OtherGradientForm as error:
                if error.of_result:
                    raise
                raise WrapperAtCut(str(error)) from None


def accumulators(capture: Capture, segmentation: Segmentation) -> list[GradientEdge]:
    """The edges of leaves that were given other memory: `set_` also gives a leaf a new accumulator."""
    inputs = (edge for edge, target in segmentation.targets.items() if isinstance(target, Primal))
    return [GradientEdge(*edge) for edge in inputs if hasattr(edge[0], "variable")] if capture.assigned else []


def _segments_of_tangents(
    outputs: Sequence[Result], tangents: Iterable[Tangent], segmentation: Segmentation
) -> dict[Tangent, int]:
    entered = entered_edges(outputs, segmentation, tangents)
    return {tangent: segmentation.segment_of[node] for tangent, (node, *_) in entered.items()}


def _reject_new_draws(capture: Capture, tangents: Sequence[torch.Tensor]) -> None:
    """Raise for random ops of the backward that depend on no tangent and do not repeat a draw of the forward.

    Raises:
        CaptureError: names the op. Autograd functions and checkpointed regions may draw.
    """
    dependent = {capture.trace.node_of(tangent) for tangent in tangents}
    for node in capture.trace.graph.nodes:
        if dependent.intersection(node.all_input_nodes):
            dependent.add(node)
        elif is_of_another_op(node) and op_table.draws(node) and "draw" not in node.meta:
            raise CaptureError(
                f"{node.target} draws random numbers while gradients are computed, for what the forward has saved (a "
                "saved-tensor hook that draws?); do this outside of the compiled function"
            )


def is_of_another_op(node: fx.Node) -> bool:
    """Whether a node of the backward is not an op of a custom function's own backward."""
    return bool(node.meta.get("autograd_backward")) and not node.meta.get("own_backward")


def _erase_gradients(graph: fx.Graph, forward: set[fx.Node]) -> None:
    """Erase the tangents that are not in `forward`, their dependents, and nodes that dead code elimination keeps.

    Other nodes stay as dead code, such as recomputed saved values.
    """
    made = [node for node in graph.nodes if node not in forward]
    erased = dict.fromkeys(n for n in made if n.op == "placeholder" or op_table.is_kept_when_dead(n.target))
    for node in graph.nodes:
        if any(source in erased for source in node.all_input_nodes):
            erased[node] = None
    for node in (node for node in reversed(graph.nodes) if node in erased):
        torch_compat.erase_with_name(graph, node)


def result_of(capture: Capture, meta: ViewAndMutationMeta, slot: ForwardResult) -> Result:
    match slot:
        case UpdatedInput(index):
            live, carries = capture.arguments[index], meta.info(index).carries_gradient
        case UserOutput(index):
            live = capture.outputs[index]
            carries = isinstance(live, torch.Tensor) and live.grad_fn is not None
        case IntermediateBase(index):
            base = meta.bases[index]
            if base.live is None:
                return Result(slot, base.node, None)
            live, carries = base.live, base.requires_grad
    return Result(slot, capture.trace.node_of(live), live if carries else None)


def _add_tangent(trace: OpenTrace, position: int, result: Result) -> torch.Tensor:
    return trace.add_placeholder(f"tangents_{position + 1}", result.differentiable)


def reject_foreign_leaves(capture: Capture, roots: Sequence[torch.Tensor]) -> None:
    """Raise for leaves that are no inputs: they would silently get no gradient.

    A leaf that was made inside and dies there is allowed, such as a wrapper subclass made of its parts: its gradient is
    never seen.

    Raises:
        CaptureError: a tensor that requires grad was closed over, or made inside the function.
    """
    known = {id(leaf) for leaf in (*capture.primals, *capture.outputs[: capture.returned])}
    for node in autograd_nodes(roots):
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known and not dies_inside(capture, node, leaf, roots):
            raise CaptureError(
                f"a tensor of shape {tuple(leaf.shape)} that requires grad is no argument of the function, so it would get "
                "no gradient: it was made inside, or comes from a closure or a global. Pass it as an argument, or "
                "detach() it"
            )


def dies_inside(capture: Capture, node: Any, leaf: torch.Tensor, roots: Sequence[torch.Tensor]) -> bool:
    """Whether nothing can see the gradient of a leaf: it was traced, has no hooks, and shares no memory with a result.

    Each result that depends on it would require grad without it, too.
    """
    parts = torch_compat.with_parts([leaf])
    is_made_inside = all(torch_compat.is_functional(part) or torch_compat.is_wrapper_subclass(part) for part in parts)
    is_hooked = any(torch_compat.hooks_of_leaf(leaf)) or node in capture.hooked_nodes | capture.nodes_with_hooks
    if not is_made_inside or is_hooked or storages(parts) & storages(torch_compat.with_parts(capture.outputs)):
        return False
    reached = [autograd_nodes([root]) for root in roots]
    primals = {id(primal) for primal in capture.primals}
    return all(any(id(getattr(each, "variable", None)) in primals for each in nodes) for nodes in reached if node in nodes)


def _gradients(
    capture: Capture,
    outputs: Sequence[Result],
    tangents: Sequence[torch.Tensor],
    effects: Effects,
    ends: Sequence[GradientEdge] = (),
    segment_of: Mapping[Any, int] = NO_SEGMENTS,
) -> list[torch.Tensor | None]:
    """One gradient for each primal, or `None`. The gradients of `ends` are computed, too."""
    specs = enumerate(capture.inputs[: len(capture.primals)])
    given = (i for i, spec in specs if isinstance(spec, TensorInput) and spec.requires_grad)
    wanted = sorted({*given, *capture.new_leaves})
    gradients: list[torch.Tensor | None] = [None] * capture.convention.placeholder_count
    roots = [result.differentiable for result in outputs]
    reject_foreign_leaves(capture, roots)
    if not outputs or not (wanted or ends):
        return gradients
    inputs = [*(capture.primals[i] for i in wanted), *ends]
    with (
        attributed_to_forward(capture.trace, roots, segment_of) as last,
        effects.watched(autograd_nodes(roots), last),
        eager_dtypes(),
        explained(last),
    ):
        # Retained: a backward that raises is retried.
        found = torch.autograd.grad(roots, inputs, tangents, retain_graph=True, allow_unused=True)
    for index, gradient in zip(wanted, found, strict=False):
        gradients[index] = gradient
    return gradients


def static_inputs(capture: Capture) -> frozenset[int]:
    return frozenset(i for i, spec in enumerate(capture.inputs) if isinstance(spec, TensorInput) and spec.is_static)


def mutated_inputs(capture: Capture, meta: ViewAndMutationMeta) -> frozenset[int]:
    """The primals whose memory the epilogue overwrites."""
    mutated = [index for index, info in enumerate(meta.inputs) if info is not None and info.mutation.data]
    specs = [(index, capture.inputs[index]) for index in mutated]
    return frozenset(spec.base if isinstance(spec, MemberInput) else index for index, spec in specs)


def writable_inputs(capture: Capture, meta: ViewAndMutationMeta, backward: AppendedBackward) -> frozenset[int]:
    """The primals that the forward graph may write itself: with a backward, buffers whose new data has no gradient.

    CUDA graphs allow writes to memory at one address only.
    """
    changed = {k for k, info in enumerate(meta.inputs) if info is not None and info.mutation is MutationType.DATA}
    plain = {k for k in changed if type(capture.inputs[k]) is TensorInput}
    if not backward.tangents:
        return frozenset(plain)
    places = (*(tangent.of for tangent in backward.tangents), *backward.memory)
    watched = {place.index for place in places if isinstance(place, (UpdatedInput, Primal))}
    return static_inputs(capture) & plain - watched
