"""Stage results -> the schedule: the steps that one call runs around the two compiled graphs.

In: capture, metadata, partition, joint graph. Out: a `Schedule`, which is data; `emit.py` makes a function of it. A
schedule has no steps that its function does not need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.ir import Capture, GraphHalf, JointGraph, Partition, SyntheticBase, ViewAndMutationMeta
from aotgrad.runtime.backward_facts import BackwardFacts
from aotgrad.runtime.mutation_steps import MutationSteps
from aotgrad.runtime.node_steps import NodeSteps
from aotgrad.runtime.overwritable import overwritable_values
from aotgrad.runtime.reused_memory import ResultCopies
from aotgrad.runtime.stage_results import StageResults, result_name
from aotgrad.runtime.steps import AdvanceGenerator, Attach, CallMethod, Forward, MakeBase, Step
from aotgrad.runtime.view_steps import ViewSteps
from aotgrad.slots import NextOffset, RandomSeed, Saved, SlotSignature, of_kind


@dataclass(frozen=True)
class Schedule:
    """What one call does.

    Attributes:
        arguments: the names of the function's arguments.
        steps: the steps, in order.
        fakes: the traced value behind each name, for symbolic sizes.
        segments: the backward graph of each autograd node.
        overwritable: the saved values that each of them may write over.
        facts: what is known of each of them.
        copies: the results that are copied if the forward reuses memory.
    """

    arguments: tuple[str, ...]
    steps: tuple[Step, ...]
    fakes: tuple[tuple[str, Any], ...]
    segments: tuple[GraphHalf, ...]
    overwritable: tuple[frozenset[Saved], ...]
    facts: tuple[BackwardFacts, ...]
    copies: ResultCopies

    @property
    def attach_steps(self) -> tuple[Attach, ...]:
        """The steps that make the autograd nodes, in the order of `segments`."""
        return of_kind(self.steps, Attach)[::-1]


def make_schedule(capture: Capture, meta: ViewAndMutationMeta, partition: Partition, joint: JointGraph) -> Schedule:
    """The schedule of one compiled function."""
    results = StageResults(capture, meta, partition, joint)
    views = ViewSteps(results)
    mutations = MutationSteps(results, views)
    nodes = NodeSteps(results, views, mutations)
    later = (
        *advances(results),
        *nodes.histories(),
        *hooks(results),
        *views.first_views(),
        *mutations.assigned_aliases(),
        *mutations.moved_versions(),
        *mutations.rewritten_versions(),
        *mutations.versions_of_saved(),
        *mutations.started_versions(),
        *views.inference_results(),
        *views.custom_views(),
        *views.new_leaves(),
        *nodes.attach(),
        *mutations.mutations(nodes.written_at, nodes.end_of_recomputation()),
        *views.detached_inputs(),
        *views.outputs(made_before=nodes.made_at),
        *views.assignments(),
        *views.ended_leaves(),
        *views.grad_mode(),
    )
    steps = (*bases(results), forward(results, later), *later) if runs_forward(partition) else later
    arguments = tuple(results.inputs[index] for index in capture.convention.order)
    halves = tuple(results.halves)
    overwritable = overwritable_values(partition, halves)
    facts = tuple(BackwardFacts.of(half, joint.segments[k].gradients) for k, half in enumerate(halves))
    copies = ResultCopies.of(partition.forward, saved_alone(partition.forward, steps))
    return Schedule((*arguments, *results.guarded), steps, results.fakes, halves, overwritable, facts, copies)


def saved_alone(forward: GraphHalf, steps: Sequence[Step]) -> list[bool]:
    """Which results of the forward a node saves, and no other step reads."""
    nodes, others = of_kind(steps, Attach), [step for step in steps if not isinstance(step, Attach)]
    saved = {name for step in nodes for name in step.saved}
    read = {name for step in others for name in step.reads()}.union(*((*step.outputs, *step.inputs) for step in nodes))
    return [result_name(slot) in saved - read for slot in forward.signature.outputs]


def runs_forward(partition: Partition) -> bool:
    """Whether the graph does anything; it is empty if every output is an input or a view of one."""
    forward = partition.forward
    return bool(forward.signature.outputs) or any(node.op == "call_function" for node in forward.module.graph.nodes)


def bases(results: StageResults) -> Iterator[MakeBase]:
    for spec in results.capture.inputs:
        if isinstance(spec, SyntheticBase):
            member = results.inputs[spec.member]
            root = f"{member}._base" if spec.through_base else member
            nbytes, dtype = int(spec.fake.numel()) * spec.fake.element_size(), spec.fake.dtype
            yield MakeBase(spec.name, member, spec.start_bytes, nbytes, dtype, root if spec.requires_grad else None)


def hooks(results: StageResults) -> Iterator[CallMethod]:
    return (CallMethod(results.inputs[hook.index], hook.method, hook.arguments) for hook in results.capture.hooks)


def forward(results: StageResults, later: tuple[Step, ...]) -> Forward:
    """The step that runs the forward graph; it releases the inputs that no step of `later` reads."""
    used = {name for step in later for name in step.reads()}
    symbols = {name for name, value in results.fakes if torch_compat.has_symbols(value)}
    release = tuple(name for name in (*results.inputs, *results.guarded) if name not in used | symbols)
    names = tuple(map(result_name, results.signature.outputs))
    kept, functional = random_devices(results.partition), philox_devices(results.signature)
    inputs = (*results.primals, *results.guarded)
    return Forward(inputs, names, release, torch_compat.any_autocast_enabled(), kept, functional)


def advances(results: StageResults) -> Iterator[AdvanceGenerator]:
    return (AdvanceGenerator(slot.device, result_name(slot)) for slot in of_kind(results.signature.outputs, NextOffset))


def philox_devices(signature: SlotSignature) -> tuple[str, ...]:
    """The devices whose seed and offset the forward takes."""
    return tuple(slot.device for slot in of_kind(signature.inputs, RandomSeed))


def random_devices(partition: Partition) -> tuple[str, ...]:
    """The devices on which a forward draws random numbers that a backward may have to redraw."""
    if partition.backward is None:
        return ()
    forward = partition.forward
    drawn = {str(op_table.drawing_device(node)) for node in forward.module.graph.nodes if op_table.draws(node)}
    return tuple(sorted(drawn.union(philox_devices(forward.signature))))
