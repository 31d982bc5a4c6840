"""Stage results -> the steps that make the autograd nodes of a call.

In: `StageResults`, and the steps that write inputs and make views. Out: for each segment what it passes gradients on
through, then its node. The nodes that run last in a backward are made first.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from aotgrad import ir, torch_compat
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.ir import BackwardSegment, TensorInput, WriteTime
from aotgrad.runtime.mutation_steps import MutationSteps
from aotgrad.runtime.segments import memory_of
from aotgrad.runtime.stage_results import StageResults, has_strides_of, is_changed, result_name
from aotgrad.runtime.steps import (
    AssembleResult,
    Attach,
    EndRecomputation,
    KeepHistory,
    KeepInputs,
    MakeAlias,
    MakeBoundary,
    PassThrough,
    RecordResults,
    Step,
    TangentLayout,
    WatchedMemory,
)
from aotgrad.runtime.view_steps import ViewSteps
from aotgrad.slots import (
    Gradient,
    GradientTarget,
    OldInput,
    Primal,
    ReturnedView,
    ReturnedWrapper,
    Saved,
    SavedSymInt,
    SegmentBoundary,
    UpdatedInput,
    UserOutput,
    of_kind,
)


class NodeSteps:
    """The steps that make autograd nodes, and what must come before each."""

    def __init__(self, results: StageResults, views: ViewSteps, mutations: MutationSteps) -> None:
        self.results, self.views, self.mutations = results, views, mutations
        self.capture, self.meta, self.inputs = results.capture, results.meta, results.inputs
        self.segments, self.halves = results.segments, results.halves

    def histories(self) -> Iterator[KeepHistory]:
        """Keep histories before versions rise: an input that is a view has another history at each version."""
        old = {g.of.index for segment in self.segments for g in segment.gradients if isinstance(g.of, OldInput)}
        for index in sorted(old.union(*map(self.lost_histories, range(len(self.segments))))):
            yield KeepHistory(f"{self.inputs[index]}_history", self.inputs[index], self.results.node_grad_mode)

    def attach(self) -> Iterator[Step]:
        """One node a segment, and what gradients of gradients need."""
        if not self.results.has_backward:
            return
        changed = (index for index in self.capture.asked_inputs if self.meta.info(index).mutation.data)
        copied = frozenset(self.inputs[index] for index in changed)
        yield KeepInputs(self.results.primals, self.mutated(), copied, self.unread())
        yield from self.views_of_wrapper(None)
        for number in reversed(range(len(self.segments))):
            yield from self.writes_before(number)
            yield from (view for index, view in self.views.later_views() if self.made_at.get(index) == number)
            yield from self.passages_of(number)
            yield from self.attach_segment(number)
            yield from self.assembled_after(number)
        yield from self.recorded_results()

    def end_of_recomputation(self) -> list[EndRecomputation]:
        """Where a checkpoint ends the call, if not at the last node that saves a tensor: eager has written more by then."""
        return [EndRecomputation()] if self.waits else []

    @functools.cached_property
    def waits(self) -> bool:
        """Whether eager writes an input before the last tensor is saved, and the steps write it after that."""
        if self.last_saving is None:
            return False
        left = (index for index in self.mutations.changed if self.written_at.get(index, -1) < self.last_saving)
        return any(self.mutations.time_of(index) is WriteTime.BEFORE for index in left)

    @functools.cached_property
    def partly_written(self) -> tuple[int, ...]:
        """The inputs that eager has written in part when the last tensor is saved."""
        return tuple(index for index in self.mutations.changed if self.mutations.time_of(index) is WriteTime.BOTH)

    @functools.cached_property
    def last_saving(self) -> int | None:
        """The segment whose node is the last one to save a tensor."""
        saving = (k for k, half in enumerate(self.halves) if of_kind(half.signature.inputs, Saved))
        return next(saving, None)

    def unread(self) -> frozenset[str]:
        """Tensors of a module with a history that no graph reads: a node that kept it would keep that of all calls before.

        Only those: a derivative does not read an input if it gets what was computed from it, and depends on it all the same.
        """
        specs = dict(zip(self.inputs, self.capture.inputs, strict=True))
        gradients = {self.inputs[g.of.index] for s in self.segments for g in s.gradients if isinstance(g.of, Primal)}
        names = (name for node, name in self.results.primal_names.items() if not node.users and name not in gradients)
        tensors = ((name, spec) for name in names if isinstance(spec := specs[name], TensorInput) and spec.path is not None)
        return frozenset(name for name, spec in tensors if spec.requires_grad and not spec.is_leaf)

    def mutated(self) -> frozenset[str]:
        infos = zip(self.inputs, self.meta.inputs, strict=True)
        return frozenset(name for name, info in infos if info is not None and info.version_bumps)

    def recorded_results(self) -> Iterator[RecordResults]:
        tangents = sorted(t.of.index for s in self.segments for t in s.tangents if isinstance(t.of, UserOutput))
        views = sorted({view for number in range(len(self.segments)) for view in self.views_of(number)})
        if tangents or views:
            names = tuple(result_name(UserOutput(index)) for index in tangents)
            yield RecordResults(names, tuple(map(self.views.alias_name, views)))

    # -- one node

    def attach_segment(self, number: int) -> Iterator[Step]:
        segment, half = self.segments[number], self.halves[number]
        fakes = half.placeholders
        tangents = {tangent: fakes[tangent].meta["val"] for tangent in segment.tangents}
        for tangent, fake in tangents.items():
            if isinstance(tangent.of, SegmentBoundary):
                yield MakeBoundary(result_name(tangent.of), tuple(fake.size()), fake.dtype, fake.device)
        saved = of_kind(half.signature.inputs, Saved)
        own_results = tuple(self.own_results(segment, saved))
        for slot in own_results:
            yield MakeAlias(f"{result_name(slot)}_alias", result_name(slot))
        yield from (MakeAlias(name, name) for name in self.ambiguous_results(segment))
        places = self.results.joint.memory
        memory = {slot.index: self.variable_of(places[slot.index]) for slot in memory_of(half, segment)}
        for index, target in memory.items():
            if target not in self.inputs:  # a node must not keep its own output alive
                yield MakeAlias(f"memory_{index}", target)
        yield Attach(
            "backward" if len(self.segments) == 1 else f"backward_{number}",
            outputs=tuple(result_name(tangent.of) for tangent in tangents),
            inputs=tuple(self.target_names(number)),
            saved=tuple(f"{result_name(s)}_alias" if s in own_results else self.mutations.saved_name(s) for s in saved),
            sizes=tuple(result_name(slot) for slot in of_kind(half.signature.inputs, SavedSymInt)),
            tangents=tuple(TangentLayout(tuple(fake.size()), tuple(fake.stride())) for fake in tangents.values()),
            grad_mode=self.results.node_grad_mode,
            memory=tuple(name if name in self.inputs else f"memory_{index}" for index, name in memory.items()),
            watched=tuple(self.watched_memory(segment)),
            waits=number == self.last_saving and self.waits,
            partly_written=self.partly_written if number == self.last_saving else (),
        )

    def variable_of(self, place: Any) -> str:
        """The variable that holds an input or a result."""
        return self.inputs[place.index] if isinstance(place, Primal) else result_name(place)

    def own_results(self, segment: BackwardSegment, saved: Sequence[Saved]) -> Iterator[Saved]:
        """The saved values that are results of the segment itself: an alias can be unpacked without the others.

        A segment with a single gradient needs all that it saves.
        """
        nodes = self.results.result_nodes
        results = {nodes[tangent.of] for tangent in segment.tangents if not isinstance(tangent.of, SegmentBoundary)}
        if len(segment.gradients) > 1:
            yield from (slot for slot in saved if nodes[slot] in results)

    def ambiguous_results(self, segment: BackwardSegment) -> Iterator[str]:
        """The results of the segment in whose place a backend may return another result, as one tensor for both."""
        nodes = self.results.result_nodes
        results = (tangent.of for tangent in segment.tangents if not isinstance(tangent.of, SegmentBoundary))
        for slot in results:
            if any(may_be_one_tensor(nodes[slot], other) for other in nodes.values()):
                yield result_name(slot)

    def target_names(self, number: int) -> Iterator[str]:
        """The variables that get the gradients of a segment; an updated input has been written by then."""
        lost = self.lost_histories(number)
        gradients = self.segments[number].gradients
        return (
            passage_name(gradient, gradient.of.part)
            if isinstance(gradient.of, ReturnedWrapper)
            else self.target_name(lost, gradient.of)
            for gradient in gradients
        )

    def target_name(self, lost: Collection[int], target: GradientTarget) -> str:
        match target:
            case Primal(index):
                return f"{self.inputs[index]}_history" if index in lost else self.inputs[index]
            case UpdatedInput(index):
                return self.inputs[index]
            case OldInput(index):
                return f"{self.inputs[index]}_history"
            case ReturnedView(index):
                return self.views.alias_name(index)
        return result_name(target)

    def lost_histories(self, number: int) -> set[int]:
        """The inputs that a segment has a gradient for, and that have another history by the time its node is made."""
        primals = [gradient.of.index for gradient in self.segments[number].gradients if isinstance(gradient.of, Primal)]
        written = {index for index in primals if number <= self.written_at.get(index, -1)}
        return {index for index in written if not self.meta.info(index).hidden_from_autograd}

    def watched_memory(self, segment: BackwardSegment) -> Iterator[WatchedMemory]:
        """See `SavingNodes.memory`."""
        places = {place for nodes in segment.saving for place in nodes.memory}
        for place in sorted(places, key=lambda place: (not isinstance(place, Primal), place.index)):
            nodes = sum(1 << k for k, nodes in enumerate(segment.saving) if place in nodes.memory)
            info = self.meta.inputs[place.index] if isinstance(place, Primal) else None
            yield WatchedMemory(self.variable_of(place), nodes, 0 if info is None else info.version_bumps)

    # -- wrapper subclasses among the results, through which gradients pass

    def passages_of(self, number: int) -> Iterator[PassThrough]:
        """The gradient that a segment passes on last leaves through the node that is made first."""
        passages = [(g, passage) for g, passage in self.results.joint.passages.items() if (g.segment or 0) == number]
        for gradient, passage in reversed(passages):
            names = (passage_name(gradient, part) for part in range(passage.count))
            yield PassThrough(tuple(names), result_name(gradient.of), passage)

    def assembled_after(self, number: int) -> Iterator[AssembleResult]:
        """The wrappers whose parts have the node of a segment."""
        own = {tangent.of for tangent in self.segments[number].tangents}
        for slot, end in self.results.wrappers.items():
            if not own.isdisjoint(UserOutput(slot.index + k) for k in range(end.flat_count)):
                texts = self.texts_of_outputs(slot.index, end.flat_count)
                yield AssembleResult(result_name(slot), end, texts[: end.count], texts[end.count :])
                yield from self.views_of_wrapper(slot)

    def views_of_wrapper(self, base: ReturnedWrapper | None) -> Iterator[AssembleResult]:
        """The views of one wrapper through which gradients pass; without `base` those of arguments that stay as they are."""
        for slot, view in self.results.wrapper_views.items():
            if base == (None if view.base is None else view.base[0]):
                texts = self.texts_of_outputs(slot.index + 1, view.count)
                yield AssembleResult(result_name(slot), view.end, texts, ())

    def texts_of_outputs(self, start: int, count: int) -> tuple[str, ...]:
        """The outputs from `start` on: names or constants."""
        steps = (self.views.return_value(place) for place in range(start, start + count))
        return tuple(step.value if step.is_name else repr(step.value) for step in steps)

    # -- what a segment passes gradients on through: it is made before the segment's node

    @functools.cached_property
    def made_at(self) -> dict[int, int]:
        """The views that segments pass gradients on through, by output, and the segment before whose node each is made.

        That is as early as possible: of several nodes that are ready, a backward first runs the one that was made last.
        """
        numbers = range(len(self.segments))
        needed = {view: number for number in numbers for index in self.views_of(number) for view in self.parents(index)}
        return {view: self.first_possible(view, number) for view, number in needed.items()}

    def first_possible(self, view: int, needed: int) -> int:
        """The first segment before whose node a view can be made: its base has a node, or its input the last value."""
        base, index = self.meta.result_behind(view), self.meta.input_behind(view)
        if index is not None:
            return needed if self.changed_with(index) else len(self.segments) - 1
        owners = [number for number, segment in enumerate(self.segments) if any(t.of == base for t in segment.tangents)]
        return owners[0] - 1 if owners else needed

    @functools.cached_property
    def written_at(self) -> dict[int, int]:
        """The inputs that are written before a node: before the first if possible, and as early as gradients need them.

        Segments pass gradients on through some of them, or through views of them.
        """
        first = len(self.segments) - 1
        needed = [(index, number) for number in range(len(self.segments)) for index in self.updated_inputs(number)]
        needed += [(self.meta.input_behind(view), number) for view, number in self.made_at.items()]
        needed += [(index, first) for index in range(len(self.inputs)) if self.segments and self.may_be_written_first(index)]
        written: dict[int, int] = {}
        for index, number in needed:
            for changed in self.changed_with(index) if index is not None else ():
                written[changed] = max(number, written.get(changed, number))
        return written

    def may_be_written_first(self, index: int) -> bool:
        """Whether an input can be written before any node: it has no history, and nothing saves its old value.

        Saved-tensor hooks should see what eager has written by then. Inputs with one version counter are written together.
        """
        if self.mutations.time_of(index) is not WriteTime.BEFORE:
            return False
        groups = (set(group) for group in self.capture.convention.shared_versions if index in group)
        return is_changed(self.meta.inputs[index]) and all(map(self.has_no_history, {index}.union(*groups)))

    def has_no_history(self, index: int) -> bool:
        """Whether no node depends on when an input is written, if it is."""
        spec, info = self.capture.inputs[index], self.meta.inputs[index]
        if not isinstance(spec, TensorInput) or info is None or self.inputs[index] in self.saved_inputs:
            return False
        moves = info.mutation.metadata or index in self.capture.assigned
        return not is_changed(info) or not (moves or spec.requires_grad or info.carries_gradient)

    @functools.cached_property
    def saved_inputs(self) -> set[str | None]:
        """The inputs whose memory is saved as it was before the call."""
        results, nodes = self.results, self.results.result_nodes
        return {results.primal_names.get(memory_owner(nodes[slot])) for slot in results.saved}

    def changed_with(self, index: int) -> list[int]:
        """The inputs that recreate the history of input `index` when they are written: itself, and others in its memory."""
        return [other for other in self.capture.sharing(index) if is_changed(self.meta.inputs[other])]

    def updated_inputs(self, number: int) -> Iterator[int]:
        targets = (gradient.of for gradient in self.segments[number].gradients)
        return (target.index for target in targets if isinstance(target, UpdatedInput))

    def views_of(self, number: int) -> Iterator[int]:
        """The returned views that a segment passes gradients on through, without what the graph returns."""
        targets = (gradient.of for gradient in self.segments[number].gradients)
        views = (target.index for target in targets if isinstance(target, ReturnedView))
        return (index for index in views if not isinstance(self.meta.outputs[index], ir.GRAPH_OUTPUTS))

    def parents(self, index: int) -> Iterator[int]:
        """A returned view, and the returned views that it is a view of."""
        yield index
        info = self.meta.outputs[index]
        if isinstance(info, ir.AliasOfOutput):
            yield from self.parents(info.output)

    def writes_before(self, number: int) -> Iterator[Step]:
        for index in sorted(index for index, first in self.written_at.items() if first == number):
            yield from self.mutations.mutate(index, self.meta.info(index))


def passage_name(gradient: Gradient, part: int) -> str:
    """The variable that gets a part of a gradient which passes through a wrapper."""
    return f"passed_{gradient.of.index}_{gradient.segment}_{gradient.term}_{part}"


def may_be_one_tensor(node: Any, other: Any) -> bool:
    """Whether two results have the same memory, size and strides."""
    if node is other or memory_owner(node) is not memory_owner(other):
        return False
    value, twin = node.meta["val"], other.meta["val"]
    same_size = torch_compat.hints(value.size()) == torch_compat.hints(twin.size())
    return same_size and has_strides_of(value, twin)
