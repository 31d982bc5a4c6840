"""The table of contents: how a function becomes an executable.

    capture     run the function once on fake inputs, under functionalization      capture/
    analysis    what happened to inputs, what outputs are aliases of               analysis/
    joint       the backward, appended to the same graph                           joint/
    partition   forward and backward graph, and what is saved between them         partition/
    backends    each graph -> a callable                                           backends/
    runtime     a plan of steps around the callables -> one function               runtime/

No stage imports another; this module is the only one that knows them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aotgrad.analysis import analyze
from aotgrad.backends.base import Backend
from aotgrad.capture.fake import find_fake_mode, make_input_specs
from aotgrad.capture.trace import FlatFunction, capture_function
from aotgrad.convention import MemorySharing, share_memory
from aotgrad.ir import (
    CallingConvention,
    Capture,
    Compiled,
    InputAliasInfo,
    InputHint,
    InputSpec,
    JointGraph,
    Partition,
    ViewAndMutationMeta,
)
from aotgrad.joint import build_joint
from aotgrad.joint.passes import keep_input_mutations, tidy
from aotgrad.options import Options
from aotgrad.partition import partition as partition_joint
from aotgrad.runtime.emit import build, emit, make_backward
from aotgrad.runtime.plan import Plan, make_plan
from aotgrad.runtime.recomputation import HigherOrder


@dataclass(frozen=True)
class Executable:
    """A compiled function and every stage that led to it. Call it with a list of arguments, which it clears."""

    capture: Capture
    meta: ViewAndMutationMeta
    joint: JointGraph
    partition: Partition
    compiled: Compiled
    plan: Plan
    source: str
    call: Callable[[list], list]

    def __call__(self, args: list) -> list:
        return self.call(args)

    @property
    def arguments(self) -> tuple[tuple[InputSpec, InputAliasInfo | None], ...]:
        """What the trace assumed of each argument, and what happens to it."""
        return tuple((self.capture.inputs[k], self.meta.inputs[k]) for k in self.capture.convention.order)

    def sharing(self, args: Sequence[Any]) -> MemorySharing:
        """How arguments share memory with those that the function changes."""
        infos = [(index, info) for index, (_, info) in enumerate(self.arguments) if info is not None]
        return MemorySharing.among(
            args,
            mutated=tuple(index for index, info in infos if info.mutation.data),
            bumped=tuple(index for index, info in infos if info.version_bumps),
        )


def compile_flat(
    function: FlatFunction,
    args: Sequence[Any],
    hints: Sequence[InputHint],
    *,
    backend: Backend,
    partition_fn: Callable,
    options: Options,
    higher_order: Callable[[Capture, ViewAndMutationMeta, Partition], HigherOrder],
    observe: Callable[[str, Any], None],
) -> Executable:
    """Compile a function of flat tensors and symbolic numbers.

    Args:
        function: called once, with fake functional tensors; returns a flat sequence.
        args: real (or fake) tensors and symbolic ints to trace for; they are not touched.
        hints: which arguments are parameters or buffers, which of their sizes are symbolic.
        backend: compiles the graphs.
        partition_fn: splits the joint graph.
        options: see `Options`.
        higher_order: makes what computes gradients of gradients, from the first stages' results.
        observe: called with (stage name, stage result) after every stage: it verifies, prints, times.
    """
    mode = find_fake_mode(args)
    convention = CallingConvention.plain(make_input_specs(mode, args, hints))
    capture = capture_function(function, convention, mode, backend.decompositions())
    meta = analyze(capture)
    if sharing := MemorySharing.of(args, meta):  # rare: what is mutated shares memory with another argument
        convention = share_memory(convention, args, sharing, mode)
        capture = capture_function(function, convention, mode, backend.decompositions())
        meta = analyze(capture)
    observe("capture", capture)
    observe("analysis", meta)
    joint = tidy(build_joint(capture, meta))
    if options.keep_input_mutations and not joint.differentiable:
        joint = keep_input_mutations(joint, meta)
    joint = backend.prepare_joint(joint)
    observe("joint", joint)
    partition = partition_joint(joint, partition_fn)
    observe("partition", partition)
    compiled = backend.compile(partition, joint.static_inputs)
    observe("compiled", compiled)
    plan = make_plan(capture, meta, partition, joint.backward_error)
    source = emit(plan)
    backward = make_backward(plan, partition, compiled, higher_order(capture, meta, partition))
    call = build(plan, source, compiled, backward)
    executable = Executable(capture, meta, joint, partition, compiled, plan, source, call)
    observe("executable", executable)
    return executable
