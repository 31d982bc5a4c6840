"""The table of contents: the stages from a function to an executable.

    capture     run the function once on fake inputs, under functionalization      capture/
    analysis    how inputs are mutated, what outputs alias                         analysis/
    joint       the backward, appended to the same graph                           joint/
    passes      the same graph, simplified; also by passes of the user             passes/
    partition   forward and backward graph, and the values saved between them      partition/
    backends    each graph -> a callable                                           backends/
    runtime     a schedule of steps around the callables -> one function           runtime/

`compile` runs capture and analysis, `compile_traced` the joint graph and its passes, `lower` the partition and the backend,
`assemble` the runtime. A `Compiler` may have another `lower`, such as one with a cache on disk. The stages come first in
this file, then what they take and return, and the details at the end.

No stage imports another; this module is the only one that imports all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx as fx

from aotgrad import passes, torch_compat
from aotgrad.analysis import analyze
from aotgrad.backends.base import PartitionCompiler
from aotgrad.backends.eager import EAGER
from aotgrad.backends.gradient_mode import in_gradient_mode
from aotgrad.backends.kit import makes_islands
from aotgrad.capture.eager_calls import Islands
from aotgrad.capture.fake import find_fake_mode, make_input_specs
from aotgrad.capture.garbage import collection_paused
from aotgrad.capture.kernels import reject_kernels_in_shared_memory
from aotgrad.capture.trace import FlatFunction, capture_function
from aotgrad.capture.trace_state import TraceState
from aotgrad.capture.values import ValueReads
from aotgrad.convention import MemorySharing, share_memory
from aotgrad.graph import op_table
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.guards.data_dependent import ValueGuard
from aotgrad.ir import (
    BoxedCallable,
    CallingConvention,
    Capture,
    CompileBackward,
    Compiled,
    GraphHalf,
    InputAliasInfo,
    InputHint,
    InputSpec,
    JointGraph,
    MemberInput,
    Partition,
    TensorInput,
    ViewAndMutationMeta,
)
from aotgrad.joint import Cuts, build_joint, shared_memory_changes
from aotgrad.options import Options, budget_of, host_bytes_of
from aotgrad.partition import Objective, functionalize_rng
from aotgrad.partition import partition as partition_joint
from aotgrad.passes.base import Pipeline
from aotgrad.passes.equal_numbers import share_equal_numbers
from aotgrad.passes.guarded_values import SplitGuard, drop_guarded_values, take_guarded_values
from aotgrad.passes.input_mutations import keep_input_mutations
from aotgrad.passes.kept_calls import keep_calls
from aotgrad.passes.kept_tapes import keep_tapes
from aotgrad.passes.known_values import KnownValues, mark_kept_values, take_known_values
from aotgrad.passes.ops import computes
from aotgrad.passes.overlap_copies import overlap_copies
from aotgrad.passes.registry import pipeline_of
from aotgrad.passes.repeated_effects import remove_repeated_effects
from aotgrad.plan_cache.eager_fallback import with_eager_backwards
from aotgrad.plan_cache.lock import COMPILING
from aotgrad.plan_cache.unfinished import leaving_unfinished
from aotgrad.runtime.backward import Backward
from aotgrad.runtime.emit import build, emit, make_backwards
from aotgrad.runtime.recomputation import HigherOrder
from aotgrad.runtime.schedule import Schedule, make_schedule
from aotgrad.slots import Primal, Saved
from aotgrad.telemetry.graph_names import GraphNames
from aotgrad.telemetry.observer import Observer
from aotgrad.torch_compat import FakeTensorMode


def compile(source: Source, compiler: Compiler) -> Stages:
    """Compile a function, one stage after the other. The result holds the results of all stages.

    Returns:
        A `SmallGraph` if the function is not worth compiling, a `TracedJoint` if the compiler stops there.
    """
    observe = compiler.observer()
    with collection_paused():
        mode, convention = source.inputs()
        trace = functools.partial(
            capture_function,
            source.function,
            fake_mode=mode,
            decompositions=compiler.backend.decompositions(),
            values=source.values,
            islands=source.islands,
            keep=compiler.backend.keep,
        )
        capture = trace(convention)
        meta = analyze(capture, compiler.is_derivative)
        if sharing := source.sharing(meta):  # rare: an input that is mutated shares memory with another one
            convention = share_memory(convention, source.args, sharing, mode)
            capture = trace(convention)
            meta = analyze(capture, compiler.is_derivative)
        capture = source.without_assigned(capture)
        observe("capture", capture)
        observe("analysis", meta)
        ops = computing_nodes(capture)
        if (reason := reason_to_run_eagerly(ops, compiler)) is not None:
            repeated = Source(source.function, (), (), repeated=(mode, convention), islands=source.islands)
            small = SmallGraph(capture, meta, len(ops), reason, repeated, compiler, TraceState.now())
            observe("small graph", small)
            return small
    return compile_traced(Traced(capture, meta), source, source.compiler_of_trace(compiler), observe)


def compile_traced(traced: Traced, source: Source, compiler: Compiler, observe: Observer) -> Executable | TracedJoint:
    """The stages after the analysis, once for each trace: the joint graph continues it."""
    with collection_paused():
        capture, meta = traced.capture, traced.meta
        joint = build_joint(capture, meta, compiler.cuts)
        joint = keep_calls(joint, capture.trace.kept_calls)
        joint = run_joint_passes(joint, source, compiler, observe)
        observe("joint", joint)
    traced = TracedJoint(capture, with_later_changes(meta, joint), joint)
    reject_sharing_with_memory(traced, source)
    if compiler.lower is None:
        return traced
    with leaving_unfinished(compiler.compiles_backward_early) as forward:
        partition, compiled = compiler.lower(joint, compiler, observe, source.known)
        compile_guard(traced, source, compiler)
        observe("compiled", compiled)
        executable = assemble(traced, partition, compiled, compiler.derive(source, traced, compiler))
    if forward:
        compile_early(executable.backwards)
    forward.finish()
    observe("executable", executable)
    return executable


def run_joint_passes(joint: JointGraph, source: Source, compiler: Compiler, observe: Observer) -> JointGraph:
    """The joint graph as it is partitioned: after the passes of this package, of the user and of the backend."""
    reject_kernels_in_shared_memory(joint.module.graph)
    if source.values is not None:
        source.values.end_trace()
        replaced = share_equal_numbers(joint, source.values.require_equal)
        source.values.answer_checks(replaced)  # before passes: the ops that they add are not the function's
        joint = take_guarded_values(joint, source.values.computed, source.values.keep)
    else:
        torch_compat.insert_deferred_checks(joint.module)
    with torch_compat.compiler_context():
        joint = run_passes(joint, compiler, observe)
        joint = keep_tapes(remove_repeated_effects(take_known_values(joint, source.known)))
    return joint if source.values is None else drop_guarded_values(joint, source.values.keep_only)


def run_passes(joint: JointGraph, compiler: Compiler, observe: Observer) -> JointGraph:
    options = compiler.options
    named = (passes.CheckpointNames(options.checkpoint_policies),) if options.checkpoint_policies else ()
    passes_of_joint = pipeline_of("joint", (*named, *passes.JOINT), options.joint_passes, passes.TIDY)
    return compiler.backend.prepare_joint(passes_of_joint.run(joint, observe.after_pass))


def lower(joint: JointGraph, compiler: Compiler, observe: Observer, known: KnownValues | None) -> tuple[Partition, Compiled]:
    """Partition a joint graph, and compile its forward."""
    names = GraphNames()
    return compile_forward(partition_graph(joint, compiler, names, known), joint, compiler, observe, names)


def partition_graph(joint: JointGraph, compiler: Compiler, names: GraphNames, known: KnownValues | None = None) -> Partition:
    """Partition a joint graph; the forward writes mutated inputs itself if the compiler wants that."""
    writable = joint.writable_inputs if compiler.options.keep_input_mutations else frozenset()
    with names.compiling("joint"), collection_paused():
        place_copies = functools.partial(overlap_copies, max_bytes=most_in_flight(compiler.options))
        marked = mark_kept_values(joint, known)
        partition = partition_joint(marked, compiler.partition_fn, compiler.objective, place_copies)
        partition = functionalize_rng(partition) if compiler.options.functionalize_rng else partition
        return replace(partition, forward=keep_input_mutations(partition.forward, writable))


def compile_forward(
    partition: Partition,
    joint: JointGraph,
    compiler: Compiler,
    observe: Observer,
    names: GraphNames,
    known_to_backend: bool = False,
) -> tuple[Partition, Compiled]:
    """Compile the forward of a partition; `known_to_backend`: the backend compiled it in another process."""
    backend = compiler.backend
    with torch_compat.compiler_context():
        of_forward = half_passes("forward", halves_of(partition), compiler.options.forward_passes)
        forward = of_forward.run(partition.forward, observe.after_pass)
    partition = replace(partition, forward=forward)
    observe("partition", partition)
    own_forward = replace(forward.copy(), is_checked=compiler.options.verify_results)  # a backend may change it
    own = replace(partition, forward=own_forward)
    with names.compiling("inference" if partition.backward is None else "forward"):
        if known_to_backend:
            compiled = backend.compile_forward(own.forward, joint.static_inputs, partition.backward is not None)
        else:
            compiled = backend.compile_partition(own, joint.static_inputs)
    return partition, finish(compiled, halves_of(partition), compiler, observe, names)


def finish(
    compiled: Compiled, halves: Sequence[GraphHalf], compiler: Compiler, observe: Observer, names: GraphNames
) -> Compiled:
    """A forward that the backend compiled, with everything that happens around each compilation of a backward.

    `halves`: the forward half, and those of backwards.
    """
    compiled = names.of_backward(in_gradient_mode(compiled, halves[0]))
    of_backward = half_passes("backward", halves, compiler.options.backward_passes)
    compiled = with_backward_passes(compiled, of_backward, observe.after_pass)
    return with_eager_backwards(compiled) if compiler.options.on_error == "eager" else compiled


def assemble(traced: TracedJoint, partition: Partition, compiled: Compiled, higher_order: HigherOrder) -> Executable:
    """The last stage, runtime: one function around the compiled graphs."""
    capture, meta, joint = traced.capture, traced.meta, traced.joint
    schedule = make_schedule(capture, meta, partition, joint)
    source = emit(schedule)
    backwards = make_backwards(schedule, compiled, joint.segments, higher_order)
    call = build(schedule, source, compiled, backwards)
    return Executable(capture, meta, joint, partition, compiled, schedule, source, backwards, call)


@dataclass(frozen=True)
class Source:
    """A function of flat tensors and symbolic numbers, and a call to trace it for.

    Attributes:
        function: called once, with fake functional tensors; returns a flat sequence.
        args: real (or fake) tensors and symbolic ints to trace for; they are not touched.
        hints: which arguments are parameters or buffers, which of their sizes are symbolic.
        known: values that the function would compute, but that arguments already hold.
        values: answers what the function asks about the values of `args`.
        repeated: the inputs of an earlier trace that this one repeats; `args` and `hints` are empty then.
        islands: the functions that are not traced.
        serves_one_call: whether the plan will never be used again; asked after the trace.
        assigned: the paths of buffers that calls assign; asked after the trace.
    """

    function: FlatFunction
    args: Sequence[Any]
    hints: Sequence[InputHint]
    known: KnownValues | None = None
    values: ValueReads | None = None
    repeated: tuple[FakeTensorMode, CallingConvention] | None = None
    islands: Islands | None = None
    serves_one_call: Callable[[], bool] = lambda: False
    assigned: Callable[[], Collection[str]] = frozenset

    def inputs(self) -> tuple[FakeTensorMode, CallingConvention]:
        """The inputs of the trace, and the mode of their fakes."""
        if self.repeated is not None:
            return self.repeated
        mode = find_fake_mode(self.args)
        return mode, CallingConvention.plain(make_input_specs(mode, self.args, self.hints))

    def sharing(self, meta: ViewAndMutationMeta) -> MemorySharing | None:
        """How arguments share memory with those that the function mutates; `None` if the inputs already describe it."""
        return None if self.repeated is not None else MemorySharing.of(self.args, meta.inputs)

    def without_assigned(self, capture: Capture) -> Capture:
        """The capture in which buffers that calls assign are no static inputs."""
        paths, convention = self.assigned(), capture.convention
        moving = [isinstance(spec, TensorInput) and spec.path in paths for spec in convention.inputs]
        if not any(moving):
            return capture
        inputs = [
            replace(spec, is_static=False) if moves else spec for spec, moves in zip(convention.inputs, moving, strict=True)
        ]
        return replace(capture, convention=replace(convention, inputs=tuple(inputs)))

    def compiler_of_trace(self, compiler: Compiler) -> Compiler:
        """The compiler of what was traced: for one call, it is not worth the time to fuse ops."""
        return replace(compiler, backend=EAGER) if compiler.backend.fuses and self.serves_one_call() else compiler


@dataclass(frozen=True)
class Compiler:
    """The backend, the partition function and the options of a compilation.

    Attributes:
        backend: compiles graphs.
        partition_fn: splits joint graphs.
        options: the options of the compilation.
        lower: partitions a joint graph and compiles its forward; `None` stops at the joint graph.
        derive: makes the function that computes gradients of gradients, which compiles on its first call.
        is_derivative: the function computes gradients, which may be differentiated again.
    """

    backend: PartitionCompiler
    partition_fn: Callable
    options: Options
    lower: Lower | None
    derive: Derive
    is_derivative: bool = False

    @property
    def cuts(self) -> Cuts:
        """Where backwards are cut."""
        return Cuts(self.options.grad_segments, self.is_derivative)

    @property
    def min_graph_ops(self) -> int:
        """The smallest number of ops for which a function is worth compiling."""
        return self.backend.min_graph_ops if self.options.min_graph_ops is None else self.options.min_graph_ops

    @property
    def finds_islands(self) -> bool:
        """Whether functions that cannot be traced run in eager between compiled graphs."""
        return makes_islands(self.backend) if self.options.islands is None else self.options.islands

    @property
    def compiles_backward_early(self) -> bool:
        """Whether a backward may be compiled before it is needed. Its errors are those of the first backward."""
        return self.options.early_backward and self.options.on_error == "raise"

    @property
    def objective(self) -> Objective:
        """The objective of the partition."""
        options = self.options
        return Objective(
            budget_of(options.memory_budget),
            options.memory_budget_of,
            self.backend.fuses,
            options.flops_per_byte,
            collectives_first=options.collectives_first,
            host_bytes=host_bytes_of(options.offload),
        )

    def observer(self) -> Observer:
        """A new observer, which verifies, logs and times the stages of one compilation."""
        return Observer(self.options.verify)

    def for_call(self, args: Sequence[Any]) -> Compiler:
        """This compiler for a call: by default the backward is cut only where gradients are awaited, see `are_awaited`."""
        is_cut = self.options.grad_segments != "auto" or (self.lower is not None and are_awaited(args))
        return self if is_cut else self.with_options(grad_segments=1)

    def with_options(self, **changes: Any) -> Compiler:
        """This compiler with other options."""
        return replace(self, options=self.options.replace(**changes))


@dataclass(frozen=True)
class Traced:
    """A function that was traced, with the facts about its inputs and outputs."""

    capture: Capture
    meta: ViewAndMutationMeta

    @property
    def arguments(self) -> tuple[tuple[InputSpec, InputAliasInfo | None], ...]:
        """What the trace assumed about each argument, and what happens to it."""
        return tuple((self.capture.inputs[k], self.meta.inputs[k]) for k in self.capture.convention.order)

    @property
    def shares_memory(self) -> bool:
        """Whether arguments share memory that the function changes."""
        return any(isinstance(spec, MemberInput) for spec in self.capture.inputs)

    @property
    def value_guard(self) -> ValueGuard | None:
        """The guard of the values that the trace read."""
        return None if self.capture.values is None else self.capture.values.guard()

    @property
    def depends_on_offsets(self) -> bool:
        """Whether the plan holds for the storage offsets of the traced arguments only."""
        return self.capture.trace.asks_for_offsets

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the function draws random numbers."""
        return any(map(op_table.draws, self.capture.trace.graph.nodes))

    @property
    def results_of_saved(self) -> Mapping[Saved, Collection[int]]:
        """The outputs that share the memory of a value which the backward needs."""
        return {}

    @property
    def takes_guarded(self) -> bool:
        """Whether the compiled function takes values that its guard has computed."""
        return False

    def sharing(self, args: Sequence[Any]) -> MemorySharing:
        """How arguments share memory with arguments that the function mutates."""
        return MemorySharing.of(args, [info for _, info in self.arguments])


@dataclass(frozen=True)
class TracedJoint(Traced):
    """A function up to its joint graph; nothing is compiled."""

    joint: JointGraph

    @property
    def depends_on_offsets(self) -> bool:
        return True  # what becomes of views is not known yet


@dataclass(frozen=True)
class Executable(Traced):
    """A compiled function and every stage that led to it. Call it with a list of arguments, which it clears."""

    joint: JointGraph
    partition: Partition
    compiled: Compiled
    schedule: Schedule
    source: str
    backwards: list[Backward]
    call: Callable[[list], list]

    def __call__(self, args: list) -> list:
        return self.call(args)

    @property
    def takes_guarded(self) -> bool:
        return bool(self.joint.signature.guarded)

    @property
    def depends_on_offsets(self) -> bool:
        return super().depends_on_offsets or any(step.depends_on_offset() for step in self.schedule.steps)

    @functools.cached_property
    def results_of_saved(self) -> Mapping[Saved, Collection[int]]:
        forward = self.partition.forward
        slots = forward.results.items()
        owners: dict[Any, fx.Node] = {slot: memory_owner(value) for slot, value in slots if isinstance(value, fx.Node)}
        results = [(k, owners.get(self.meta.computed_result(k))) for k in range(len(self.meta.outputs))]
        saved = ((slot, owner) for slot, owner in owners.items() if isinstance(slot, Saved))
        found = {slot: [k for k, other in results if other is owner] for slot, owner in saved}
        return {slot: members for slot, members in found.items() if members}

    @functools.cached_property
    def inputs_read(self) -> tuple[int, ...]:
        """The inputs whose values the graph or the guard of values needs."""
        placeholders = self.joint.module.graph.find_nodes(op="placeholder")
        guarded = () if (guard := self.value_guard) is None else guard.inputs
        return tuple(k for k, node in enumerate(placeholders) if k in guarded or op_table.is_read(node))


@dataclass(frozen=True)
class SmallGraph(Traced):
    """A function that is not worth compiling, and the reason. The original function runs instead.

    Attributes:
        ops: how many of its ops compute something.
        repeated: the function, for the same inputs.
        compiler: what would compile it.
        state: the global state of its trace.
    """

    ops: int
    reason: str
    repeated: Source
    compiler: Compiler
    state: TraceState

    @functools.cached_property
    def compiled(self) -> Executable:
        """The function as graphs, for a process that does not have it. Their ops run one by one, as the original's do."""
        compiler = self.compiler if self.compiler.backend.keep else replace(self.compiler, backend=EAGER)
        with COMPILING, self.state.active(), torch_compat.outside_transforms():
            made = compile_traced(Traced(self.capture, self.meta), self.repeated, compiler, compiler.observer())
        assert isinstance(made, Executable), "a tracer compiles small functions, too"
        return made

    @property
    def source(self) -> str:
        """The text that describes it in place of source."""
        count = "1 op computes" if self.ops == 1 else f"{self.ops} ops compute"
        return f"# {count} something, {self.reason}: the original function runs eagerly"


Stages = Executable | TracedJoint | SmallGraph
"""How far a function was compiled: to the end, up to the joint graph, or not at all because it is small."""

Lower = Callable[[JointGraph, Compiler, Observer, "KnownValues | None"], "tuple[Partition, Compiled]"]
Derive = Callable[[Source, TracedJoint, Compiler], HigherOrder]


def compile_early(backwards: Sequence[Backward]) -> None:
    """Compile backwards, and start the compilers of their C++ kernels; the first backward waits for these compilers."""
    for backward in backwards:
        backward.variants.compile_early()


def compile_guard(traced: TracedJoint, source: Source, compiler: Compiler) -> None:
    """Compile what the guard of values computes for the graph, if the backend fuses ops or an option saves memory."""
    guard, options = traced.value_guard, compiler.options
    recomputes = options.memory_budget is not None or options.offload or options.checkpoint_policies
    if guard is None or source.values is None or not (compiler.backend.fuses or recomputes):
        return
    if not traced.joint.signature.guarded:
        return
    assert compiler.lower is not None and isinstance(guard.compute, fx.GraphModule)
    order, static = traced.capture.convention.order, traced.joint.static_inputs
    static = frozenset(k for k, index in enumerate(order) if index in static)
    split = SplitGuard.of(guard.compute, static)
    if split is None:
        return
    observe = compiler.observer()
    with torch_compat.compiler_context():
        values = run_passes(split.values, compiler, observe)
    partition, compiled = compiler.lower(values, compiler, observe, None)
    source.values.compute_by(CompiledGuard(partition.forward, static, split.answers.module, compiled.forward))


@dataclass(frozen=True)
class CompiledGuard:
    """What a guard of values computes: the ops on tensors as a backend's graph, then the views and numbers among them.

    `static_inputs`: the positions of the arguments that keep their memory.
    """

    values: GraphHalf
    static_inputs: frozenset[int]
    answers: fx.GraphModule
    run: BoxedCallable

    def __call__(self, *tensors: torch.Tensor) -> tuple:
        return self.answers(*tensors, *self.run(list(tensors)))


def with_later_changes(meta: ViewAndMutationMeta, joint: JointGraph) -> ViewAndMutationMeta:
    """The metadata with the inputs that the backward changes."""
    changed = {place.index for place in joint.memory if isinstance(place, Primal)}
    if not changed:
        return meta
    infos = [info and replace(info, changed_later=k in changed) for k, info in enumerate(meta.inputs)]
    return replace(meta, inputs=tuple(infos))


def reject_sharing_with_memory(traced: TracedJoint, source: Source) -> None:
    """Raise if an input that the backward changes shares memory with another one.

    Raises:
        CaptureError: names the input.
    """
    changed = {k for k, (_, info) in enumerate(traced.arguments) if info is not None and info.changed_later}
    for group in traced.sharing(source.args).groups if changed and source.repeated is None else ():
        members = {index for index, _ in group.starts}
        if len(members) > 1 and (found := sorted(members & changed)):
            raise shared_memory_changes(found[0])


def halves_of(partition: Partition) -> list[GraphHalf]:
    """The forward half, and the backward half if there is one."""
    return [half for half in (partition.forward, partition.backward) if half is not None]


def half_passes(place: str, halves: Sequence[GraphHalf], of_user: Sequence[passes.Pass]) -> Pipeline:
    """The passes over one of the halves."""
    built_in = passes.COMMUNICATING if any(half.communicates() for half in halves) else ()
    return pipeline_of(place, built_in, of_user)


def most_in_flight(options: Options) -> int:
    """The most bytes of device memory for values that are being copied to or from the host."""
    budget = budget_of(options.memory_budget)
    return budget if isinstance(budget, int) else 2**30


def are_awaited(args: Sequence[Any]) -> bool:
    """Whether a hook or DDP acts on a gradient of an argument as soon as it is computed."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    return any(map(torch_compat.is_awaited, tensors)) or torch_compat.ddp_awaits_gradients()


def computing_nodes(capture: Capture) -> list[fx.Node]:
    """The nodes of the function that compute something."""
    return [node for node in capture.trace.graph.nodes if computes(node)]


def reason_to_run_eagerly(ops: Sequence[fx.Node], compiler: Compiler) -> str | None:
    """Why a function is not worth compiling: few ops compute something, and the backend speeds none up by itself."""
    limit = compiler.min_graph_ops
    if len(ops) >= limit:
        return None
    reasons = [] if compiler.options.min_graph_ops is not None else [*map(compiler.backend.reason_to_leave, ops)]
    return None if None in reasons else "; ".join([f"min_graph_ops is {limit}", *dict.fromkeys(filter(None, reasons))])


def with_backward_passes(compiled: Compiled, pipeline: Pipeline, after_pass: passes.Hook) -> Compiled:
    """`compiled` with passes over each variant of a backward graph, before it is compiled."""
    if not pipeline.passes:
        return compiled
    return compiled.with_backward(lambda compile: BackwardPasses(pipeline, compile, after_pass))


@dataclass(frozen=True)
class BackwardPasses:
    """Compiles a copy of a backward graph after passes over it; other variants derive from the original graph."""

    pipeline: Pipeline
    compile: CompileBackward
    after_pass: passes.Hook

    def __call__(self, half: GraphHalf) -> BoxedCallable:
        return self.compile(self.pipeline.run(half.copy(), self.after_pass))
