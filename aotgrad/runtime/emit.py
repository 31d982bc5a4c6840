"""A schedule -> one straight-line Python function. The text is what runs: `Executable.source` shows it.

def call(args):
    primals_1, = args
    args.clear()
    inputs = [primals_1]
    output_0, saved_cos = below_autograd(forward, inputs)
    recomputation = Recomputation((primals_1,), [primals_1._version], None)
    output_0, = attach(backward, (output_0,), (saved_cos,), recomputation, None, primals_1)
    recomputation.results = ((ref(output_0), None),)
    return [output_0]
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aotgrad import native, torch_compat
from aotgrad.ir import BackwardSegment, BoxedCallable, Compiled
from aotgrad.runtime.autograd import SENTINEL, CallDetails, History, Segment, stand_in
from aotgrad.runtime.backward import Backward
from aotgrad.runtime.inner_values import attach_with_stand_ins
from aotgrad.runtime.native_node import attach_function
from aotgrad.runtime.recomputation import HigherOrder, Recomputation
from aotgrad.runtime.repeated_calls import attach_and_wait
from aotgrad.runtime.reused_memory import ForwardInReusedMemory
from aotgrad.runtime.schedule import Schedule
from aotgrad.runtime.steps import Forward, ReturnValue, SetVersion
from aotgrad.runtime.synthetic_base import attached_base, memory_alias, synthetic_base
from aotgrad.runtime.variants import VariantCache
from aotgrad.runtime.writer import ObjectNames, SourceWriter, tuple_of
from aotgrad.slots import of_kind
from aotgrad.subclasses.passages import passed_result

BARE = """def call(args):
    results = below_autograd(forward, args)
    args.clear()
    return [*results]
"""


def emit(schedule: Schedule) -> str:
    """The source text of a schedule's function."""
    if is_bare(schedule):
        return BARE
    untracked = () if schedule.segments else {step.target for step in of_kind(schedule.steps, SetVersion)}
    writer = SourceWriter(dict(schedule.fakes), untracked)
    if schedule.arguments:
        writer.line(f"{tuple_of(schedule.arguments)} = args")
    writer.line("args.clear()")
    writer.bind_versions(dict.fromkeys(name for step in schedule.steps for name in step.entry_versions()))
    for kind, run in itertools.groupby(schedule.steps, type):
        kind.emit_all(list(run), writer)
    writer.line(f"return [{', '.join(writer.returned)}]")
    return "\n".join(["def call(args):", *(f"    {line}" for line in writer.lines), ""])


def is_bare(schedule: Schedule) -> bool:
    """Whether a call only runs the graph."""
    forward, *others = schedule.steps or [None]
    if not isinstance(forward, Forward) or forward.autocast or forward.random_devices:
        return False
    returned = tuple(step.value for step in others if isinstance(step, ReturnValue) and step.is_name)
    return len(returned) == len(others) and forward.inputs == schedule.arguments and forward.results == returned


def build(schedule: Schedule, source: str, compiled: Compiled, backwards: Sequence[Backward]) -> Callable[[list], list]:
    """The function that `source` defines, with the compiled graphs bound; `backwards` has one entry a segment."""
    nodes = zip(schedule.attach_steps, backwards, strict=True)
    namespace = {
        **namespace_of_steps(),
        "forward": forward_of(schedule, compiled),
        "attach": attach_function(backwards),
        **{step.backward: backward for step, backward in nodes},
        **objects_of(schedule),
    }
    for backward in backwards:
        backward.inner.redirect = functools.partial(make_stand_ins, namespace)
    exec(compile(source, f"<aotgrad plan {compiled.backend}>", "exec"), namespace)
    return namespace["call"]


def make_stand_ins(namespace: dict[str, Any]) -> None:
    """Let the function of a namespace make stand-ins for inner values."""
    namespace["attach"] = attach_with_stand_ins(torch_compat.plain_apply(Segment), namespace["attach"])


def forward_of(schedule: Schedule, compiled: Compiled) -> BoxedCallable:
    """The compiled forward. If it reuses memory, it copies what it returns."""
    if not compiled.reuses_memory:
        return compiled.forward
    return ForwardInReusedMemory(compiled.forward, schedule.copies)


def namespace_of_steps() -> dict[str, Any]:
    """What the source of steps calls."""
    return {
        "math": math,  # rounds sizes, in the text of symbolic numbers
        "torch": torch,
        "aten": torch.ops.aten,
        "below_autograd": native.lookup("below_autograd", torch_compat.run_below_autograd),
        "disable_autocast": torch_compat.disable_autocast,
        "set_grad_enabled": torch.set_grad_enabled,
        "version_of": torch_compat.version_of,
        "versions_of": native.lookup("versions_of", torch_compat.versions_of),
        "sharing_version": torch_compat.sharing_version,
        "as_inference": torch_compat.as_inference,
        "versions_at_entry": torch_compat.versions_at_entry,
        "raise_version": torch_compat.raise_version,
        "raise_versions": torch_compat.raise_versions,
        "synthetic_base": native.lookup("synthetic_base", synthetic_base),
        "attached_base": attached_base,
        "memory_alias": memory_alias,
        "attach_and_wait": attach_and_wait,
        "sentinel": SENTINEL,
        "CallDetails": CallDetails,
        "Recomputation": Recomputation,
        "ref": weakref.ref,
        "random_state": torch_compat.random_state,
        "philox_state": torch_compat.philox_state,
        "advance_philox": torch_compat.advance_philox,
        "stand_in": stand_in,
        "history_of": History.apply,
        "passed_result": passed_result,
    }


def objects_of(schedule: Schedule) -> dict[str, Any]:
    """The objects that the source refers to by name."""
    names = ObjectNames()
    return {names.next(kind): value for step in schedule.steps for kind, value in step.objects()}


def make_backwards(
    schedule: Schedule, compiled: Compiled, segments: Sequence[BackwardSegment], higher_order: HigherOrder
) -> list[Backward]:
    """What the autograd node of each segment runs."""
    symbolic = any(torch_compat.has_symbols(value) for _, value in schedule.fakes)
    writes_over = compiled.writes_over and not symbolic
    backwards = []
    of_segments = (schedule.segments, segments, schedule.attach_steps, schedule.overwritable, schedule.facts)
    parts = zip(*of_segments, strict=bool(schedule.segments))
    for number, (half, segment, step, overwritable, facts) in enumerate(parts):
        assert compiled.compile_backward is not None, "there are segments"
        over = overwritable if writes_over else frozenset()
        variants = VariantCache(half, compiled.compile_backward, segment.gradients, facts, over)
        if symbolic:
            variants.get(variants.full_key())  # now, while guards that this adds are still read
        backwards.append(Backward.of(variants, number, higher_order, segment, step, compiled.reuses_memory))
    return backwards
