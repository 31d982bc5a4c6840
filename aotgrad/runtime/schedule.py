"""Stage results -> the schedule: the steps that one call runs around the two compiled graphs.

In: capture, metadata, partition. Out: a `Schedule`, which is data; `emit.py` makes a function of it. Steps that a function
does not need are not in its schedule.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.ir import (
    GRAPH_OUTPUTS,
    AliasOfInput,
    AliasOfIntermediate,
    AliasOfIntermediateBaseIsUserOutput,
    AliasOfOutput,
    BackwardSegment,
    Capture,
    ConstantOutput,
    CustomFunctionView,
    GraphHalf,
    InputAliasInfo,
    InputSpec,
    IsInput,
    IsOutput,
    JointGraph,
    Made,
    MemberInput,
    MutationType,
    NonAlias,
    OutputAliasInfo,
    Partition,
    SavingNodes,
    SymInput,
    SymOutput,
    SyntheticBase,
    TensorInput,
    UnsafeViewAlias,
    ViewAndMutationMeta,
    ViewReplay,
    ViewStep,
    memory_of,
)
from aotgrad.runtime.segments import segment_halves
from aotgrad.runtime.steps import (
    AliasBase,
    AssignData,
    Attach,
    CallMethod,
    ConvertToInference,
    CopyBack,
    Forward,
    KeepHistory,
    KeepInputs,
    MakeAlias,
    MakeBase,
    MakeBoundary,
    MakeView,
    NoteResults,
    Pieces,
    RestoreGradMode,
    ReturnValue,
    SetVersion,
    ShareVersion,
    StartVersion,
    Step,
    TangentLayout,
    UpdateGeometry,
)
from aotgrad.slots import (
    GradientTarget,
    GraphSignature,
    IntermediateBase,
    OldInput,
    Primal,
    ReturnedView,
    Saved,
    SavedSymInt,
    SegmentBoundary,
    UpdatedInput,
    UserOutput,
    of_kind,
)
from aotgrad.torch_compat import storage_node


@dataclass(frozen=True)
class Schedule:
    """What one call does.

    `arguments` are the names of what the function is called with, `fakes` the traced value behind each name (for symbolic
    sizes), and `segments` the backward graph of each autograd node. `saved_by` are, for each tensor that one saves, the
    nodes of eager's among `BackwardSegment.saving` that save it too, as a bit mask.
    """

    arguments: tuple[str, ...]
    steps: tuple[Step, ...]
    fakes: tuple[tuple[str, Any], ...]
    segments: tuple[GraphHalf, ...]
    saved_by: tuple[tuple[int, ...], ...]

    @property
    def attached(self) -> tuple[Attach, ...]:
        """The steps that make the autograd nodes, in the order of `segments`."""
        return of_kind(self.steps, Attach)[::-1]


def make_schedule(capture: Capture, meta: ViewAndMutationMeta, partition: Partition, joint: JointGraph) -> Schedule:
    """The schedule of one compiled function."""
    return _ScheduleBuilder(capture, meta, partition, joint).build()


def result_name(slot: Any) -> str:
    """The variable that holds a forward result."""
    match slot:
        case UpdatedInput(index):
            return f"updated_{index + 1}"
        case UserOutput(index):
            return f"output_{index}"
        case IntermediateBase(index):
            return f"base_{index}"
        case SegmentBoundary(index):
            return f"cut_{index}"
        case Saved(name) | SavedSymInt(name):
            return f"saved_{name}"
    raise AssertionError(slot)


class _ScheduleBuilder:
    def __init__(self, capture: Capture, meta: ViewAndMutationMeta, partition: Partition, joint: JointGraph) -> None:
        self.segments = joint.segments
        self.halves = segment_halves(partition.backward, joint.segments) if partition.backward is not None else ()
        self.memory = joint.memory
        self.capture = capture
        self.meta = meta
        self.partition = partition
        self.signature: GraphSignature = partition.forward.signature
        self.inputs = tuple(spec.name for spec in capture.inputs)

    def build(self) -> Schedule:
        later = (
            *self.histories(),
            *self.hooks(),
            *self.first_views(),
            *self.assigned_aliases(),
            *self.moved_versions(),
            *self.rewritten_versions(),
            *self.versions_of_saved(),
            *self.started_versions(),
            *self.inference_results(),
            *self.custom_views(),
            *self.new_leaves(),
            *self.attach(),
            *self.mutations(),
            *self.detached_inputs(),
            *self.outputs(),
            *self.assignments(),
            *self.ended_leaves(),
            *self.grad_mode(),
        )
        forward = (*self.bases(), self.forward(later)) if self.runs_forward() else ()
        arguments = tuple(self.inputs[index] for index in self.capture.convention.order)
        return Schedule(arguments, (*forward, *later), self.fakes(), self.halves, tuple(self.saved_by()))

    def runs_forward(self) -> bool:
        """Not if the graph is empty: every output is an input or a view of one."""
        return any(node.op == "call_function" for node in self.partition.forward.module.graph.nodes) or bool(
            self.signature.outputs
        )

    # -- the forward graph and its autograd node

    def bases(self) -> Iterator[MakeBase]:
        for spec in self.capture.inputs:
            if isinstance(spec, SyntheticBase):
                member = self.inputs[spec.member]
                root = f"{member}._base" if spec.through_base else member
                nbytes, dtype = int(spec.fake.numel()) * spec.fake.element_size(), spec.fake.dtype
                yield MakeBase(spec.name, member, spec.start_bytes, nbytes, dtype, root if spec.requires_grad else None)

    def hooks(self) -> Iterator[CallMethod]:
        return (CallMethod(self.inputs[hook.index], hook.method, hook.arguments) for hook in self.capture.hooks)

    @functools.cached_property
    def primals(self) -> tuple[str, ...]:
        """The inputs of the graph."""
        return self.inputs[: self.capture.convention.placeholder_count]

    def forward(self, later: tuple[Step, ...]) -> Forward:
        used = {name for step in later for name in step.reads()}
        symbols = {name for name, value in self.fakes() if torch_compat.is_symbolic_value(value)}
        release = tuple(name for name in self.inputs if name not in used | symbols)
        results = tuple(result_name(slot) for slot in self.signature.outputs)
        return Forward(self.primals, results, release, torch_compat.any_autocast_enabled(), self.random_devices())

    def random_devices(self) -> tuple[str, ...]:
        if self.partition.backward is None:
            return ()
        nodes = self.partition.forward.module.graph.nodes
        return tuple(sorted({device_type(node) for node in nodes if op_table.draws(node)}))

    def attach(self) -> Iterator[Step]:
        """One node a segment; those that run last in a backward are made first."""
        if self.partition.backward is None:
            return
        changed = (index for index in self.capture.asked_inputs if self.meta.info(index).mutation.data)
        asked = frozenset(self.inputs[index] for index in changed)
        yield KeepInputs(self.primals, self.mutated(), tuple(self.watched_updates()), asked)
        for number in reversed(range(len(self.segments))):
            yield from self.writes_before(number)
            yield from (view for index, view in self.views() if self.made_at.get(index) == number)
            yield from self.attach_segment(number)
        yield from self.noted_results()

    def noted_results(self) -> Iterator[NoteResults]:
        tangents = sorted(t.of.index for s in self.segments for t in s.tangents if isinstance(t.of, UserOutput))
        views = sorted({view for number in range(len(self.segments)) for view in self.views_of(number)})
        if tangents or views:
            yield NoteResults(
                tuple(result_name(UserOutput(index)) for index in tangents), tuple(map(self.alias_name, views))
            )

    def attach_segment(self, number: int) -> Iterator[Step]:
        segment, half = self.segments[number], self.halves[number]
        fakes = dict(zip(half.signature.inputs, half.module.graph.find_nodes(op="placeholder"), strict=True))
        tangents = {tangent: fakes[tangent].meta["val"] for tangent in segment.tangents}
        for tangent, fake in tangents.items():
            if isinstance(tangent.of, SegmentBoundary):
                yield MakeBoundary(result_name(tangent.of), tuple(fake.size()), fake.dtype, fake.device)
        saved = of_kind(half.signature.inputs, Saved)
        own_results = tuple(self.own_results(segment, saved))
        for slot in own_results:
            yield MakeAlias(f"{result_name(slot)}_alias", result_name(slot))
        memory = {memory.index: self.memory_target(memory.index) for memory in memory_of(half, segment)}
        for index, target in memory.items():
            if target not in self.inputs:  # an output must not be held by its own node
                yield MakeAlias(f"memory_{index}", target)
        yield Attach(
            "backward" if len(self.segments) == 1 else f"backward_{number}",
            outputs=tuple(result_name(tangent.of) for tangent in tangents),
            inputs=tuple(self.target_names(number)),
            saved=tuple(f"{result_name(s)}_alias" if s in own_results else self.own_name(s) for s in saved),
            sizes=tuple(result_name(slot) for slot in of_kind(half.signature.inputs, SavedSymInt)),
            tangents=tuple(TangentLayout(tuple(fake.size()), tuple(fake.stride())) for fake in tangents.values()),
            grad_mode=self.node_grad_mode(),
            watched_inputs=tuple(self.watched_inputs(segment.saving, saved)),
            watched_results=tuple(self.watched_results(segment.saving, saved)),
            watched_members=tuple(self.watched_members(segment.saving, saved)),
            memory=tuple(name if name in self.inputs else f"memory_{index}" for index, name in memory.items()),
        )

    def memory_target(self, index: int) -> str:
        """The variable that holds memory which a backward changes."""
        place = self.memory[index]
        return self.inputs[place.index] if isinstance(place, Primal) else result_name(place)

    def own_results(self, segment: BackwardSegment, saved: Sequence[Saved]) -> Iterator[Saved]:
        """The saved values that are results of the segment itself: an alias can be unpacked without the others.

        A segment with a single gradient needs all that it saves.
        """
        nodes = {
            self.result_nodes[tangent.of] for tangent in segment.tangents if not isinstance(tangent.of, SegmentBoundary)
        }
        if len(segment.gradients) > 1:
            yield from (slot for slot in saved if self.result_nodes[slot] in nodes)

    def saved_by(self) -> Iterator[tuple[int, ...]]:
        """See `Schedule`."""
        placeholders = self.partition.forward.module.graph.find_nodes(op="placeholder")
        values: list[tuple[Any, Any]] = [(Primal(k), node) for k, node in enumerate(placeholders)]
        values += [(slot, self.result_nodes[slot]) for slot in self.signature.forward_results]
        for segment, half in zip(self.segments, self.halves, strict=bool(self.halves)):
            nodes, masks = masks_of(segment.saving), dict[Any, int]()
            for slot, node in values:
                masks[storage_node(node)] = masks.get(storage_node(node), 0) | nodes.get(slot, 0)
            saved = of_kind(half.signature.inputs, Saved)
            yield tuple(masks.get(storage_node(self.result_nodes[slot]), 0) for slot in saved)

    def watched_inputs(self, saving: Sequence[SavingNodes], saved: Sequence[Saved]) -> Iterator[tuple[int, int]]:
        """The inputs that eager saves and a segment does not, with the nodes that do, as a bit mask.

        Of an input that the function changes, eager has saved the new value, or else its backward raises anyway.
        """
        names = {self.saved_updates.get(slot, slot.name) for slot in saved if slot not in self.laid_out_anew}
        masks = masks_of(saving)
        for index, name in enumerate(self.primals):
            nodes = masks.get(Primal(index), 0) | masks.get(UpdatedInput(index), 0)
            if nodes and self.meta.inputs[index] is not None and name not in names:
                yield index, nodes

    def watched_members(self, saving: Sequence[SavingNodes], saved: Sequence[Saved]) -> Iterator[tuple[str, int, int]]:
        """The inputs in shared memory whose new value eager saves and a segment does not, with the nodes that do."""
        names = {self.saved_updates[slot] for slot in saved if slot in self.saved_updates}
        names |= {self.saved_bases[slot].name for slot in saved if slot in self.saved_bases}
        masks = masks_of(saving)
        members = ((index, spec) for index, spec in enumerate(self.capture.inputs) if isinstance(spec, MemberInput))
        for index, spec in members:
            nodes = masks.get(UpdatedInput(index), 0)
            if nodes and names.isdisjoint((spec.name, self.inputs[spec.base])):
                yield spec.name, nodes, self.meta.info(index).version_bumps

    def watched_updates(self) -> Iterator[tuple[str, int]]:
        """The watched inputs that the function changes, and by how much their version is higher after the call."""
        for segment, half in zip(self.segments, self.halves, strict=bool(self.halves)):
            for index, _ in self.watched_inputs(segment.saving, of_kind(half.signature.inputs, Saved)):
                if bumps := self.meta.info(index).version_bumps:
                    yield self.primals[index], bumps

    def watched_results(self, saving: Sequence[SavingNodes], saved: Sequence[Saved]) -> Iterator[tuple[str, int]]:
        """The results that eager saves and a segment does not, with the nodes that do, as a bit mask."""
        memory = {storage_node(self.result_nodes[slot]) for slot in saved}
        changed = {slot for slot, _ in self.meta.versions}
        masks = masks_of(saving)
        for slot in of_kind(self.signature.outputs, (UserOutput, IntermediateBase)):
            nodes = masks.get(slot, 0)
            if nodes and slot not in changed and storage_node(self.result_nodes[slot]) not in memory:
                yield result_name(slot), nodes

    def target_names(self, number: int) -> Iterator[str]:
        """The variables whose gradients a segment returns; an updated input has been written by then."""
        lost = self.lost_histories(number)
        return (self.target_name(lost, gradient.of) for gradient in self.segments[number].gradients)

    def target_name(self, lost: Collection[int], target: GradientTarget) -> str:
        match target:
            case Primal(index):
                return f"{self.inputs[index]}_history" if index in lost else self.inputs[index]
            case UpdatedInput(index):
                return self.inputs[index]
            case OldInput(index):
                return f"{self.inputs[index]}_history"
            case ReturnedView(index):
                return self.alias_name(index)
        return result_name(target)

    # What a segment passes gradients on through is made before its node is.

    @functools.cached_property
    def made_at(self) -> dict[int, int]:
        """The outputs that are views through which segments pass gradients on, and before which node each is made.

        As early as it can be: of several that are ready, a backward runs the node first that was made last.
        """
        numbers = range(len(self.segments))
        needed = {view: number for number in numbers for index in self.views_of(number) for view in self.parents(index)}
        return {view: self.first_possible(view, number) for view, number in needed.items()}

    def first_possible(self, view: int, needed: int) -> int:
        """Before the node of which segment a view can be made: when its base has a node, and an input its last value."""
        base, index = self.meta.result_behind(view), self.meta.input_behind(view)
        if index is not None:
            return needed if self.changed_with(index) else len(self.segments) - 1
        owners = [number for number, segment in enumerate(self.segments) if any(t.of == base for t in segment.tangents)]
        return owners[0] - 1 if owners else needed

    @functools.cached_property
    def written_at(self) -> dict[int, int]:
        """The inputs that segments pass gradients on through, or through views of, and before which node each is written."""
        needed = [(index, number) for number in range(len(self.segments)) for index in self.updated_inputs(number)]
        needed += [(self.meta.input_behind(view), number) for view, number in self.made_at.items()]
        written: dict[int, int] = {}
        for index, number in needed:
            for changed in self.changed_with(index) if index is not None else ():
                written[changed] = max(number, written.get(changed, number))
        return written

    def changed_with(self, index: int) -> list[int]:
        """The inputs whose writes make the history of input `index` anew: itself, and others in the same memory."""
        return [other for other in self.capture.sharing(index) if is_changed(self.meta.inputs[other])]

    def updated_inputs(self, number: int) -> Iterator[int]:
        targets = (gradient.of for gradient in self.segments[number].gradients)
        return (target.index for target in targets if isinstance(target, UpdatedInput))

    def views_of(self, number: int) -> Iterator[int]:
        """The returned views that a segment passes gradients on through, without what the graph returns."""
        targets = (gradient.of for gradient in self.segments[number].gradients)
        views = (target.index for target in targets if isinstance(target, ReturnedView))
        return (index for index in views if not isinstance(self.meta.outputs[index], GRAPH_OUTPUTS))

    def parents(self, index: int) -> Iterator[int]:
        """A returned view, and the returned views that it is a view of."""
        yield index
        info = self.meta.outputs[index]
        if isinstance(info, AliasOfOutput):
            yield from self.parents(info.output)

    def writes_before(self, number: int) -> Iterator[Step]:
        for index in sorted(index for index, first in self.written_at.items() if first == number):
            yield from self.mutate(index, self.meta.info(index))

    def histories(self) -> Iterator[KeepHistory]:
        """Before versions rise: an input that is a view has another history with every other version."""
        old = {g.of.index for segment in self.segments for g in segment.gradients if isinstance(g.of, OldInput)}
        for index in sorted(old.union(*map(self.lost_histories, range(len(self.segments))))):
            yield KeepHistory(f"{self.inputs[index]}_history", self.inputs[index], self.node_grad_mode())

    def lost_histories(self, number: int) -> set[int]:
        """The inputs that a segment has a gradient for and that have got another history when its node is made."""
        primals = [gradient.of.index for gradient in self.segments[number].gradients if isinstance(gradient.of, Primal)]
        written = {index for index in primals if number <= self.written_at.get(index, -1)}
        return {index for index in written if not self.meta.info(index).hidden_from_autograd}

    def node_grad_mode(self) -> bool | None:
        """Under `no_grad`, only what the function made under `enable_grad` requires grad."""
        return None if self.capture.grad_mode_before else True

    def mutated(self) -> frozenset[str]:
        infos = zip(self.inputs, self.meta.inputs, strict=True)
        return frozenset(name for name, info in infos if info is not None and info.version_bumps)

    def own_name(self, slot: Saved) -> str:
        """A saved input is saved as the caller's tensor, so that autograd watches its version; a copy is saved as it is."""
        if slot in self.laid_out_anew:
            return result_name(slot)
        if slot.name in self.moved_inputs or slot.name in {self.inputs[index] for index in self.capture.assigned}:
            return f"{slot.name}_before"
        if slot in self.saved_updates:
            return f"{self.saved_updates[slot]}_after"
        if slot in self.saved_bases:
            return f"{self.saved_bases[slot].name}_after"
        return slot.name if slot.name in self.inputs else result_name(slot)

    @functools.cached_property
    def laid_out_anew(self) -> frozenset[Saved]:
        """The saved inputs that the backward takes in another layout: copies, which the forward has made for itself."""
        if self.partition.backward is None:
            return frozenset()
        fakes = {name: value for name, value in self.fakes() if name in self.inputs and isinstance(value, torch.Tensor)}
        placeholders = self.partition.backward.module.graph.find_nodes(op="placeholder")
        taken = zip(self.partition.backward.signature.inputs, placeholders, strict=True)
        saved = [(slot, node.meta["val"]) for slot, node in taken if isinstance(slot, Saved) and slot.name in fakes]
        return frozenset(slot for slot, value in saved if not has_strides_of(value, fakes[slot.name]))

    def inference_results(self) -> Iterator[ConvertToInference]:
        """Results made under an inner `inference_mode`."""
        for index, (info, value) in enumerate(zip(self.meta.outputs, self.capture.outputs, strict=True)):
            if isinstance(info, NonAlias | UnsafeViewAlias) and value.is_inference():
                yield ConvertToInference(result_name(UserOutput(index)))

    def custom_views(self) -> Iterator[MakeView]:
        for index, info in enumerate(self.meta.outputs):
            if isinstance(info, CustomFunctionView) and info.index is not None and info.remake is not None:
                yield MakeView(result_name(UserOutput(index)), self.inputs[info.index], info.remake)

    def new_leaves(self) -> Iterator[CallMethod]:
        """Results that start a history of their own."""
        for index in sorted(self.meta.new_leaves):
            if isinstance(self.meta.outputs[index], GRAPH_OUTPUTS):
                yield CallMethod(result_name(UserOutput(index)), "requires_grad_", ())

    # -- inputs that are given another memory

    def assigned_aliases(self) -> Iterator[MakeAlias]:
        """What the backward takes of them is their old memory."""
        saved = {slot.name for slot in of_kind(self.signature.outputs, Saved)}
        names = (self.inputs[index] for index in self.capture.assigned)
        return (MakeAlias(f"{name}_before", name) for name in names if name in saved)

    def assignments(self) -> Iterator[AssignData]:
        for index, output in self.capture.assigned.items():
            source = self.return_value(output, self.meta.outputs[output]).value
            yield AssignData(self.inputs[index], source)

    def detached_inputs(self) -> Iterator[CallMethod]:
        """Inputs that are detached, once what was computed of them has its history: views are made of the detached ones."""
        for index in sorted(self.capture.ended):
            if not self.is_leaf(index):
                yield CallMethod(self.inputs[index], "detach_", ())

    def ended_leaves(self) -> Iterator[CallMethod]:
        """Leaves that no longer require grad: their views are made before, each with grad mode as it needs it."""
        for index in sorted(self.capture.ended):
            if self.is_leaf(index):
                yield CallMethod(self.inputs[index], "requires_grad_", (False,))

    def is_leaf(self, index: int) -> bool:
        spec = self.capture.inputs[index]
        return isinstance(spec, TensorInput) and spec.is_leaf

    # -- mutated inputs

    @functools.cached_property
    def moved_inputs(self) -> dict[str, InputAliasInfo]:
        """Inputs whose metadata alone is mutated."""
        infos = zip(self.inputs, self.meta.inputs, strict=True)
        return {name: info for name, info in infos if info is not None and not info.mutation.data and info.version_bumps}

    @functools.cached_property
    def shared_versions(self) -> frozenset[int]:
        """Inputs whose version counter is that of another input too."""
        return frozenset(index for inputs in self.capture.convention.shared_versions for index in inputs)

    def moved_versions(self) -> Iterator[Step]:
        """Versions rise before autograd saves a tensor whose data stays: its backward may use it.

        What moved behind autograd's back moves here, so that its gradient has the new shape.
        """
        saved = of_kind(self.signature.outputs, Saved)
        for name, info in self.moved_inputs.items():
            if Saved(name) in saved and Saved(name) not in self.laid_out_anew:
                yield MakeAlias(f"{name}_before", name)
            if info.mutation.metadata and info.hidden_from_autograd:
                yield UpdateGeometry(name, info.geometry_after, False)
            yield SetVersion(name, info.version_bumps)

    @functools.cached_property
    def saved_updates(self) -> dict[Saved, str]:
        """Saved values that are the new data of an input: the input itself is saved, so that later writes are noticed."""
        if self.partition.backward is None:
            return {}
        nodes = self.result_nodes
        inputs = {nodes[UpdatedInput(i)]: i for i in range(len(self.inputs)) if UpdatedInput(i) in nodes}
        found = {slot: inputs[nodes[slot]] for slot in of_kind(self.signature.outputs, Saved) if nodes[slot] in inputs}
        stand_ins = ((slot, i) for slot, i in found.items() if self.eager_saves(i) and self.can_stand_in(nodes[slot], i))
        return {slot: self.inputs[i] for slot, i in stand_ins}

    def eager_saves(self, index: int) -> bool:
        """Whether eager saves something in the memory of an input: if not, writes to it do no harm."""
        primal = base_of_member(self.capture.inputs[index], index)
        members = [k for k, spec in enumerate(self.capture.inputs) if base_of_member(spec, k) == primal]
        memory = {Primal(primal), *map(UpdatedInput, members)}
        return any(memory & nodes.values for segment in self.segments for nodes in segment.saving)

    def can_stand_in(self, node: Any, index: int) -> bool:
        """Whether the input, once written, is laid out as the updated value that the backward was traced with."""
        info, fake, value = self.meta.info(index), self.capture.fake(index), node.meta["val"]
        same_layout = torch_compat.known_equal(fake.stride(), value.stride()) and fake.dtype == value.dtype
        return info.mutation is MutationType.DATA and info.version_bumps > 0 and same_layout

    @functools.cached_property
    def result_nodes(self) -> dict[Any, Any]:
        """The node behind each output slot of the forward graph."""
        (output,) = self.partition.forward.module.graph.find_nodes(op="output")
        return dict(zip(self.signature.outputs, output.args[0], strict=True))

    def rewritten_versions(self) -> Iterator[Step]:
        for name in self.saved_updates.values():
            yield SetVersion(name, self.meta.info(self.inputs.index(name)).version_bumps)
            yield MakeAlias(f"{name}_after", name)
        for base in self.saved_bases.values():
            member = self.inputs[base.member]
            yield SetVersion(member, self.meta.info(base.member).version_bumps)
            yield AliasBase(f"{base.name}_after", member, base.start_bytes, int(base.fake.numel()))

    def started_versions(self) -> Iterator[StartVersion]:
        """Before autograd saves the results: it remembers their versions."""
        return (StartVersion(result_name(slot), version) for slot, version in self.meta.versions)

    @functools.cached_property
    def saved_bases(self) -> dict[Saved, SyntheticBase]:
        """Saved values that are the new data of a synthetic base: its memory is saved, for the same reason."""
        if self.partition.backward is None:
            return {}
        members = [(i, spec) for i, spec in enumerate(self.capture.inputs) if isinstance(spec, MemberInput)]
        nodes = self.result_nodes
        bases = {storage_node(nodes[UpdatedInput(i)]): spec.base for i, spec in members if UpdatedInput(i) in nodes}
        found = {slot: bases[nodes[slot]] for slot in of_kind(self.signature.outputs, Saved) if nodes[slot] in bases}
        specs = [(slot, self.capture.inputs[k]) for slot, k in found.items()]
        whole = {slot: base for slot, base in specs if isinstance(base, SyntheticBase) and self.is_whole(nodes[slot], base)}
        return {slot: base for slot, base in whole.items() if self.eager_saves(base.member)}

    def is_whole(self, node: Any, base: SyntheticBase) -> bool:
        """Whether a value is laid out as the flat base, and the member that it is made of can be aliased as that."""
        member, value = self.capture.fake(base.member), node.meta["val"]
        bumps = self.meta.info(base.member).version_bumps
        same = value.dtype == base.fake.dtype == member.dtype and value.size() == base.fake.size()
        return bumps > 0 and same and not member.is_conj() and not member.is_neg()

    def versions_of_saved(self) -> Iterator[ShareVersion]:
        """Results that are the same memory as a saved value: the caller's writes must be noticed by the backward."""
        if self.partition.backward is None:
            return
        nodes = self.result_nodes
        saved = {storage_node(nodes[slot]): slot for slot in of_kind(self.signature.outputs, Saved)}
        for slot in of_kind(self.signature.outputs, (UserOutput, IntermediateBase)):
            owner = saved.get(storage_node(nodes[slot]))
            if owner is not None and owner.name not in self.inputs and nodes[slot] is not nodes[owner]:
                yield ShareVersion(result_name(slot), result_name(owner))

    def mutations(self) -> Iterator[Step]:
        """Of the inputs that no segment passes gradients on through."""
        for index, info in enumerate(self.meta.inputs):
            if info is not None and index not in self.written_at and is_changed(info):
                yield from self.mutate(index, info)

    def mutate(self, index: int, info: InputAliasInfo) -> Iterator[Step]:
        name = self.inputs[index]
        copies = UpdatedInput(index) in self.signature.outputs
        through = copy_path(self.capture.inputs[index], info)
        if name in self.moved_inputs and (info.hidden_from_autograd or not info.mutation.metadata):
            return
        made = info.mutation.metadata + (copies and through != ".data")
        is_shared = isinstance(self.capture.inputs[index], MemberInput) or index in self.shared_versions
        moves_early = not info.mutation.data or name in self.saved_updates.values() or is_shared
        sets_version = (made and moves_early) or made != info.version_bumps
        # A version that is set after autograd saw the change makes it take the history of a view for an old one.
        is_seen = info.mutation.metadata and not info.hidden_from_autograd
        sets_before = sets_version and is_seen and made <= info.version_bumps
        if sets_before:
            yield SetVersion(name, info.version_bumps - made)
        if info.mutation.metadata:
            yield UpdateGeometry(name, info.geometry_after, False if info.hidden_from_autograd else self.node_grad_mode())
            yield from (view for k, view in self.all_views() if k in self.reshaped_views and view.base == name)
        among_others = copies and self.is_written_with_others(index)
        if among_others:
            yield SetVersion(name, info.version_bumps)
        if copies:
            grad_mode = self.node_grad_mode() if info.carries_gradient else None
            yield CopyBack(name, result_name(UpdatedInput(index)), through, grad_mode)
        if among_others or (sets_version and not sets_before):
            yield SetVersion(name, info.version_bumps)

    def is_written_with_others(self, index: int) -> bool:
        """Whether other views of one tensor are written, too: each takes its history anew after the last of these writes.

        A view does where its version is another one than when it was written itself.
        """
        spec = self.capture.inputs[index]
        if not isinstance(spec, MemberInput) or not spec.attached:
            return False
        written = [self.capture.inputs[slot.index] for slot in of_kind(self.signature.outputs, UpdatedInput)]
        return sum(isinstance(other, MemberInput) and other.base == spec.base and other.attached for other in written) > 1

    # -- outputs

    def first_views(self) -> Iterator[MakeView]:
        """Views of inputs that changed after the view was made."""
        first = {k for k, info in enumerate(self.meta.outputs) if is_made_first(info)} - self.reshaped_views
        return (view for index, view in self.all_views() if index in first)

    @functools.cached_property
    def reshaped_views(self) -> set[int]:
        """Those that were made between a change of the input's size or stride, and a write to it."""
        infos = enumerate(self.meta.outputs)
        older = [(k, info) for k, info in infos if isinstance(info, AliasOfInput) and info.made is Made.BEFORE_WRITES]
        return {k for k, info in older if self.meta.info(info.index).mutation.metadata}

    def outputs(self) -> Iterator[Step]:
        yield from (view for index, view in self.views() if index not in self.made_at)
        yield from self.versions_of_data_aliases()
        yield from self.hooks_of_views()
        yield from self.kept_gradients()
        for index, info in enumerate(self.meta.outputs[: self.capture.returned]):
            yield self.return_value(index, info)

    def versions_of_data_aliases(self) -> Iterator[StartVersion]:
        """An alias by `.data` counts its own versions: the function may have changed it."""
        for index, (info, value) in enumerate(zip(self.meta.outputs, self.capture.outputs, strict=True)):
            steps = replay.steps if (replay := replay_of(info)) is not None else ()
            if any(step.op is torch.ops.aten.data.default for step in steps) and value._version:
                yield StartVersion(f"output_{index}", value._version)

    def hooks_of_views(self) -> Iterator[CallMethod]:
        for hook in self.capture.output_hooks:
            value = self.return_value(hook.index, self.meta.outputs[hook.index]).value
            yield CallMethod(value, hook.method, hook.arguments)

    def kept_gradients(self) -> Iterator[CallMethod]:
        """Results that are no leaves and of which the function wants the gradient kept; inputs are among `hooks`."""
        for index, (info, value) in enumerate(zip(self.meta.outputs, self.capture.outputs, strict=True)):
            if isinstance(value, torch.Tensor) and value.retains_grad and not isinstance(info, IsInput | IsOutput):
                yield CallMethod(self.return_value(index, info).value, "retain_grad", ())

    def all_views(self) -> Iterator[tuple[int, MakeView]]:
        """The replays by output, each after the one that it is a view of. Pieces of one view are results of one node."""
        views, times = dict(self.separate_views()), Counter[str]()
        groups: dict[tuple[str, int] | int, list[int]] = {}
        for index, view in views.items():
            if (key := self.pieces_key(index, view)) is None:
                groups[index] = [index]
                continue
            same = repr((view.base, view.replay.steps))  # the same piece again is another tensor
            groups.setdefault((key, times[same]), []).append(index)
            times[same] += 1
        shared = [group for group in groups.values() if len(group) > 1]
        number = {index: k for k, group in enumerate(shared) for index in group}
        for index, view in views.items():
            pieces = Pieces(f"pieces_{number[index]}", steps_to_pieces(view.replay)) if index in number else None
            yield index, replace(view, pieces=pieces)

    def pieces_key(self, index: int, view: MakeView) -> str | None:
        """What is the same for views that are pieces of one view, `None` for others. It compares no symbolic sizes."""
        steps, is_first = steps_to_pieces(view.replay), is_made_first(self.meta.outputs[index])
        return repr((view.base, steps, view.replay.grad_mode, is_first)) if steps else None

    def separate_views(self) -> Iterator[tuple[int, MakeView]]:
        infos = self.meta.outputs
        parents = [info.output if isinstance(info, AliasOfOutput) else None for info in infos]
        for index in parents_first(parents, [age(value) for value in self.capture.outputs]):
            if (replay := replay_of(infos[index])) is not None and replay.steps:
                is_leaf = index in self.meta.new_leaves
                yield index, MakeView(f"output_{index}", self.base_name(infos[index]), replay, is_leaf=is_leaf)

    def views(self) -> Iterator[tuple[int, MakeView]]:
        """Those that are made after the graph has run and inputs have their new geometry."""
        return ((index, view) for index, view in self.all_views() if not is_made_first(self.meta.outputs[index]))

    def base_name(self, info: OutputAliasInfo) -> str:
        match info:
            case AliasOfInput(index):
                return self.inputs[index]
            case AliasOfIntermediate(base):
                return result_name(IntermediateBase(base))
            case AliasOfIntermediateBaseIsUserOutput(output):
                return result_name(UserOutput(output))
            case AliasOfOutput(output):
                return self.alias_name(output)
        raise AssertionError(info)

    def alias_name(self, index: int) -> str:
        """The variable that holds an output which is an alias."""
        info: Any = self.meta.outputs[index]
        return f"output_{index}" if isinstance(info, GRAPH_OUTPUTS) or info.replay.steps else self.base_name(info)

    def return_value(self, index: int, info: OutputAliasInfo) -> ReturnValue:
        match info:
            case ConstantOutput(value):
                return ReturnValue(value, is_name=False)
            case IsOutput(first):
                return self.return_value(first, self.meta.outputs[first])
            case IsInput(position):
                return ReturnValue(self.inputs[position], is_name=True)
            case AliasOfInput() | AliasOfOutput() | AliasOfIntermediate() | AliasOfIntermediateBaseIsUserOutput():
                return ReturnValue(self.alias_name(index), is_name=True)
            case NonAlias() | UnsafeViewAlias() | CustomFunctionView() | SymOutput():
                return ReturnValue(result_name(UserOutput(index)), is_name=True)
        raise AssertionError(info)

    def grad_mode(self) -> Iterator[Step]:
        if self.meta.grad_mode_after is not None:
            yield RestoreGradMode(self.meta.grad_mode_after)

    # -- symbolic sizes

    def fakes(self) -> tuple[tuple[str, Any], ...]:
        """Traced values by name: the inputs, then the forward's results."""
        inputs = [(spec.name, spec.value if isinstance(spec, SymInput) else spec.fake) for spec in self.capture.inputs]
        (output,) = self.partition.forward.module.graph.find_nodes(op="output")
        results = zip(self.signature.outputs, output.args[0], strict=True)
        named = [(result_name(slot), node.meta["val"]) for slot, node in results if hasattr(node, "meta")]
        return (*inputs, *named)


def base_of_member(spec: InputSpec, index: int) -> int:
    """The placeholder that input `index` is made of."""
    return spec.base if isinstance(spec, MemberInput) else index


def has_strides_of(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two traced tensors of one size have the same strides; asks without adding a guard."""
    return torch_compat.hints(torch_compat.strides(value)) == torch_compat.hints(torch_compat.strides(other))


def masks_of(saving: Sequence[SavingNodes]) -> dict[Any, int]:
    """Which nodes save each value, as a bit mask."""
    masks: dict[Any, int] = {}
    for k, nodes in enumerate(saving):
        for value in nodes.values:
            masks[value] = masks.get(value, 0) | 1 << k
    return masks


def is_changed(info: InputAliasInfo | None) -> bool:
    return info is not None and info.version_bumps + info.mutation.data + info.mutation.metadata > 0


def is_made_first(info: OutputAliasInfo) -> bool:
    return isinstance(info, AliasOfInput) and info.made is not Made.AFTER_CHANGES


def steps_to_pieces(replay: ViewReplay) -> tuple[ViewStep, ...]:
    """The steps up to the first that returns several views, of which it takes all; none if there is no such step."""
    several = [k for k, step in enumerate(replay.steps) if step.item is not None][:1]
    return tuple(step for k in several for step in (*replay.steps[:k], replace(replay.steps[k], item=None)))


def age(value: Any) -> int:
    """When the autograd node of a result was made; 0 if it has none."""
    node = value.grad_fn if isinstance(value, torch.Tensor) else None
    return 0 if node is None else torch_compat.node_sequence_nr(node)


def parents_first(parents: Sequence[int | None], ages: Sequence[int]) -> list[int]:
    """The positions of `parents` by age, each after its parent.

    >>> parents_first([2, None, 1, None], [1, 5, 6, 0])
    [3, 1, 2, 0]
    """
    order: dict[int, None] = {}

    def visit(index: int) -> None:
        if index not in order:
            if (parent := parents[index]) is not None:
                visit(parent)
            order[index] = None

    for index in sorted(range(len(parents)), key=ages.__getitem__):
        visit(index)
    return list(order)


def is_recorded(node: Any) -> bool:
    return node.op == "call_function" and node.target is torch_compat.run_and_save_rng_state


def device_type(node: Any) -> str:
    """Where a random op draws; of one that is recorded, the first result is the state."""
    value = node.meta.get("val")
    value = value[1] if is_recorded(node) else value
    value = value[0] if isinstance(value, (list, tuple)) else value
    return value.device.type if isinstance(value, torch.Tensor) else "cpu"


def copy_path(spec: Any, info: InputAliasInfo) -> str:
    """How the new data is written so that autograd and the version counter see what they saw in eager."""
    if info.version_bumps == 0:
        return ".data"
    return ".detach()" if info.hidden_from_autograd and spec.requires_grad else ""


def replay_of(info: OutputAliasInfo) -> ViewReplay | None:
    return getattr(info, "replay", None)
