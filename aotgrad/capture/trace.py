"""Runs the user's function once, on functional fake tensors, and leaves the trace open.

In: a flat function and its input specs. Out: a `Capture`. The joint stage appends the backward to the same open trace, so
the function never runs a second time.

    capture = capture_function(lambda x: (x.sin(),), specs, mode, decompositions={})
    capture.trace.graph         # primals_1 -> sin
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.capture import gradient_aliases, views_before_mutation
from aotgrad.capture.casting_calls import CastingCalls
from aotgrad.capture.eager_calls import EagerCallRecorder, Islands
from aotgrad.capture.fast_recorder import FastRecorder
from aotgrad.capture.function_mode import FunctionHandlers
from aotgrad.capture.functional import input_state, make_arguments, make_primals, shared_versions
from aotgrad.capture.generator import WatchedGenerators
from aotgrad.capture.hooks import HookRecords, held_by, take_hooks, take_hooks_of_views
from aotgrad.capture.indexing import IndexMarks
from aotgrad.capture.inner_backwards import InnerBackward
from aotgrad.capture.kept_calls import KeptCalls, noted_gradients
from aotgrad.capture.literals import SymbolicLiterals
from aotgrad.capture.outside_memory import OutsideMemoryUses
from aotgrad.capture.recorder import LIBRARY_FOLDERS, UNSEEN, Recorder, printed_line
from aotgrad.capture.regions import CheckpointedRegion, OpenedContexts, rerun_context
from aotgrad.capture.values import ValueReads, forget_constants, takes_symbolic_float
from aotgrad.capture.write_times import write_times
from aotgrad.eager_calls.call import EagerCall
from aotgrad.errors import AOTGradError, CaptureError, add_note
from aotgrad.graph import op_table
from aotgrad.graph.kept_calls import KeptCall
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.guards.data_dependent import Level
from aotgrad.ir import CallingConvention, Capture, InputHook, InputSpec, MemberInput, OnRegion, SymInput, TensorInput
from aotgrad.torch_compat import FakeTensorMode

FlatFunction = Callable[..., Sequence[Any]]
NO_REGIONS: Mapping[fx.GraphModule, Collection[int]] = {}


@dataclass(frozen=True)
class KeptRegion:
    """A run of a region that Dynamo keeps as one op: its tensors, each with its value then, and the regions inside.

    `draws`: the second run draws other random numbers. `writes`: it changes a tensor in place, maybe one of its own, whose
    old value torch would not recompute.
    """

    region: fx.GraphModule
    arguments: Mapping[int, tuple[torch.Tensor, fx.Node]]
    results: Mapping[int, tuple[torch.Tensor, fx.Node]]
    draws: bool
    writes: bool
    inside: frozenset[fx.GraphModule]


def run_nested_region(_: Any, region: fx.GraphModule, args: Sequence[Any], settings: dict[str, Any]) -> Any:
    """Run a region that Dynamo keeps, inside a region that is traced a second time in the backward."""
    return torch_compat.run_checkpointed(region, args, settings, range(len(args)))


class Trace:
    """An FX graph under construction, with the modes that record into it. Implements `ir.OpenTrace`.

    `is_symbolic`: a size or stride of an input is symbolic. `retraced`: regions kept by Dynamo that the backward reruns and
    traces, each with the arguments that change.
    """

    def __init__(
        self,
        fake_mode: FakeTensorMode,
        decompositions: Mapping[Any, Callable],
        values: ValueReads,
        is_symbolic: bool,
        retraced: Mapping[fx.GraphModule, Collection[int]] = NO_REGIONS,
    ) -> None:
        self.recorder, self._is_symbolic = Recorder(), is_symbolic
        self._generators = WatchedGenerators(self.recorder.graph)
        self._values = values
        self._fake_mode = fake_mode
        fast = FastRecorder(self.recorder, fake_mode, decompositions, self._track)
        self._proxy_mode = torch_compat.proxy_mode(self.recorder, functools.partial(self._record, fast))
        self._functional_mode = torch_compat.functional_mode(
            self.make_effect_token, values, self._proxy_mode, fast.record_functional
        )
        self._decompositions = decompositions
        self.on_hook: Callable[[Any, Sequence[Any]], None] | None = None
        self.on_region: OnRegion | None = None
        self.changing: set[Any] = set()
        self.opened = OpenedContexts()
        self.eager_calls: list[EagerCall] = []
        self.kept_calls: list[KeptCall] = []
        self._regions, self._backwards = itertools.count(), itertools.count()
        self._retraced = retraced
        self._kept: list[KeptRegion] = []

    def _record(self, fast: FastRecorder, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The results of an op on fakes, or `NotImplemented`."""
        if op in torch_compat.READS_ENTRIES and self._values.wants(op, args):
            return self._values.result(op, args, kwargs)
        if takes_symbolic_float([*args, *kwargs.values()]):
            forget_constants([*args, *kwargs.values()], self.recorder)  # torch would compute with nan in place of the float
        return fast.record_fakes(op, args, kwargs)

    @property
    def graph(self) -> fx.Graph:
        return self.recorder.graph

    @property
    def writes(self) -> Sequence[torch_compat.InPlaceWrite]:
        """The mutating ops that have run."""
        return torch_compat.writes_of(self._functional_mode)

    @property
    def asks_for_offsets(self) -> bool:
        """Whether an op ran whose behaviour depends on the storage offset of a tensor."""
        return torch_compat.depends_on_offsets(self._functional_mode)

    def watch_draws(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the function runs, and its use of the random generator is followed."""
        return self._generators.watch()

    def checkpoints(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, the function runs. Records its checkpointed regions, and what the regions do that Dynamo keeps."""
        stack = contextlib.ExitStack()
        stack.enter_context(torch_compat.report_regions(self.begin_region))
        stack.enter_context(torch_compat.run_kept_regions(self.run_kept))
        return stack

    def begin_region(self, function: Callable, keeps_state: bool) -> tuple[Callable, Callable[[], None]]:
        """Note the beginning of a region. Returns a function that reruns the region, and a callback for its end."""
        outer = self.recorder.region
        region = CheckpointedRegion.begin(function, keeps_state, next(self._regions) if outer is None else outer)
        stack = contextlib.ExitStack()
        stack.callback(region.end)
        stack.enter_context(self.recording(region))
        return functools.partial(self.rerun, region), stack.close

    @contextlib.contextmanager
    def inner_backward(self, outputs: Any, gradients: Any) -> Iterator[None]:
        """Inside, the function runs a backward of outputs from these gradients. A trace within this one has its own."""
        traced = (each for each in torch_compat.with_parts(gradients or ()) if torch_compat.any_functional([each]))
        nodes = (torch_compat.proxy_node(torch_compat.from_functional(each), self.recorder) for each in traced)
        outer = self.recorder.backward
        run = InnerBackward(next(self._backwards), [node for node in nodes if node is not None])
        self.recorder.backward = run
        try:
            roots = [each for each in outputs if isinstance(each, torch.Tensor)]
            with noted_gradients(self, roots, run.number, run.starts):
                yield
        finally:
            self.recorder.backward = outer

    def noting_gradients(self, roots: Iterable[torch.Tensor]) -> contextlib.AbstractContextManager[None]:
        """Inside, the backward of the function runs: its nodes are marked for kept calls, and their gradients noted."""
        return noted_gradients(self, roots, None)

    @contextlib.contextmanager
    def recording(self, region: CheckpointedRegion) -> Iterator[None]:
        """Inside, recorded nodes belong to a region. A policy of the user tags them itself, and does not end on its own."""
        outer = self.recorder.region
        self.recorder.region = region.number
        try:
            with torch_compat.kept_policy():
                yield
        finally:
            self.recorder.region = outer

    def rerun(self, region: CheckpointedRegion, *args: Any, **kwargs: Any) -> Any:
        """Rerun a region in the backward, within `on_region`. A region that changes something reruns at no other time."""
        with contextlib.ExitStack() as stack:
            if self.on_region is not None:
                stack.enter_context(self.on_region(region, [*args, *kwargs.values(), *held_by(region.function)]))
            elif region in self.changing:
                raise RuntimeError("a checkpointed region that changes something reruns in the backward only")
            stack.enter_context(self.recording(region))
            return region.rerun(args, kwargs)

    def run_kept(self, run: Callable, region: fx.GraphModule, args: Sequence[Any], settings: dict[str, Any]) -> Any:
        """Run a region that Dynamo keeps. The backward's trace reruns it only if a second run does something else.

        Raises:
            CaptureError: the backward reruns it, and the user's `context_fn` says which of its values are saved.
        """
        if region in self._retraced:
            if torch_compat.has_own_policy(region):
                raise CaptureError(
                    "torch.utils.checkpoint with a context_fn reruns a region in the backward, and the region changes a "
                    "tensor in place, or draws other random numbers then; leave out context_fn, or checkpoint outside of "
                    "the compiled function"
                )
            with rerun_context(lambda: torch_compat.run_kept_regions(run_nested_region)):
                return torch_compat.run_checkpointed(region, args, settings, self._retraced[region])
        if not torch.is_grad_enabled():
            return run(region, *args, **settings)
        tensors = self._nodes_of(args)
        last, begun = next(iter(reversed(self.graph.nodes)), None), len(self._kept)
        written = len(self.writes)
        result = run(region, *args, **settings)
        made = itertools.takewhile(lambda node: node is not last, reversed(self.graph.nodes))
        draws = not settings.get("preserve_rng_state", True) and any(op_table.draws(node) for node in made)
        writes = len(self.writes) > written
        inside = frozenset(each.region for each in self._kept[begun:])
        results = self._nodes_of(result if isinstance(result, (tuple, list)) else [result])
        self._kept.append(KeptRegion(region, tensors, results, draws, writes, inside))
        return result

    def _nodes_of(self, values: Sequence[Any]) -> Mapping[int, tuple[torch.Tensor, fx.Node]]:
        """The traced tensors among `values`, by position, and their nodes now."""
        return {k: (value, self.node_of(value)) for k, value in enumerate(values) if torch_compat.any_functional([value])}

    def _changed(self, values: Mapping[int, tuple[torch.Tensor, fx.Node]]) -> frozenset[int]:
        return frozenset(k for k, (value, node) in values.items() if self.node_of(value) is not node)

    def regions_to_retrace(self) -> dict[fx.GraphModule, Collection[int]]:
        """The regions kept by Dynamo that are not recomputed from saved values, each with the arguments that change.

        These are regions whose second run would do more than recompute, or that read tensors or return results which change
        later.

        An argument that requires grad may not change, in eager. For the others, Dynamo does not tell whether the region got
        them or closes over them.
        """
        found: dict[fx.GraphModule, Collection[int]] = {}
        for kept in self._kept:
            changed = self._changed_arguments(kept)
            reruns = kept.draws or kept.writes or not kept.inside.isdisjoint(found)
            if changed or reruns or (self._changed(kept.results) and not torch_compat.has_own_policy(kept.region)):
                found[kept.region] = changed.union(found.get(kept.region, ()))
        return found

    def _changed_arguments(self, kept: KeptRegion) -> frozenset[int]:
        return frozenset(k for k in self._changed(kept.arguments) if not kept.arguments[k][0].requires_grad)

    def forgetting_later_numbers(self) -> Callable[[], None]:
        """A function that forgets the nodes of symbolic numbers which are recorded from now on until it is called."""
        return functools.partial(torch_compat.set_known_numbers, self.recorder, torch_compat.known_numbers(self.recorder))

    @contextlib.contextmanager
    def watched_draws_of_backward(self) -> Iterator[None]:
        """Inside, the backward runs: a checkpointed region draws the numbers of the forward, or new ones."""
        self._generators.begin()
        with self._generators.watch():
            yield

    @contextlib.contextmanager
    def within_contexts(self) -> Iterator[None]:
        """Inside, the backward runs within the contexts of the function, so that hooks read traced tensors of a module.

        Raises:
            CaptureError: the backward assigns state; or the function does, and the backward reads what is not traced.
        """
        known = {id(constant) for constant in self.constants()}
        with self.opened.again() as assigned:
            yield
        if assigned and any(id(constant) not in known for constant in self.constants()):
            raise CaptureError(
                "the forward assigns a new tensor to a buffer or attribute of its module, and a hook or the backward of an "
                "autograd function reads a tensor that is no argument. Change the state in place: self.name.copy_(...)"
            )

    def assignments(self, arguments: Sequence[Any]) -> torch_compat.Assignments:
        """The handler of calls that give a tensor the memory of another one."""
        return torch_compat.Assignments(self._functional_mode, arguments)

    def outside_memory(
        self, convention: CallingConvention, arguments: Sequence[Any], islands: Islands | None
    ) -> OutsideMemoryUses:
        """What eager calls use besides their arguments."""
        placeholders = {node.name: node for node in self.graph.find_nodes(op="placeholder")}
        specs = convention.inputs
        owners = [specs[spec.base] if isinstance(spec, MemberInput) else spec for spec in specs]
        real = zip(() if islands is None else islands.arguments, convention.order, strict=False)
        inputs = [(tensor, placeholders[owners[k].name], arguments[k]) for tensor, k in real]
        return OutsideMemoryUses(inputs, lambda: self.writes)

    def making_arguments(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the arguments are made from the placeholders."""
        return torch_compat.making_arguments(self._functional_mode)

    def noting_autocast(self) -> contextlib.AbstractContextManager[None]:
        """Inside, kernels that call ops of autocast are recorded with their casts."""
        return torch_compat.note_autocast(self._functional_mode)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Record everything that runs inside. Autocast caches no traced cast, and anomaly mode is off."""
        torch.clear_autocast_cache()
        try:
            with (
                torch_compat.no_compiled_autograd(),
                torch.autograd.set_detect_anomaly(False),
                torch_compat.normal_mode(),
                torch_compat.inline_compiled_functions(),
                torch_compat.hidden_saved_tensor_hooks(),
                self._fake_mode,
                torch_compat.answered_by(self._fake_mode, self._values.answer),
                torch_compat.symbolic_kernels(),
                torch_compat.eager_layouts(self._fake_mode),
                torch_compat.fixed_nested_ints(self._fake_mode),
                torch_compat.symbolic_zero_tensors() if self._is_symbolic else contextlib.nullcontext(),
                torch_compat.fx_traceback.preserve_node_meta(),  # nodes carry the op before decomposition, `original_aten`
                self._proxy_mode,
                torch_compat.decompose(self._decompositions),
                torch_compat.subgraphs_are_traced(self._fake_mode, self._decompositions),
                self._functional_mode,
            ):
                yield
        finally:
            torch.clear_autocast_cache()

    def add_input(self, spec: TensorInput | SymInput) -> None:
        """Add a placeholder for `spec`, and track its fake value."""
        node = self.graph.placeholder(spec.name)
        if isinstance(spec, TensorInput) and spec.path is not None:
            node.meta["path"] = spec.path
        self._track(spec.fake if isinstance(spec, TensorInput) else spec.value, node)

    def add_placeholder(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Add a placeholder after the existing ones. Returns its functional tensor, with the metadata of `like`."""
        value = torch_compat.from_functional(like)  # recorded: a view is recreated if its base was written to
        with torch_compat.hidden_tracing_modes(), torch.no_grad():
            fake = tangent_like(value)
            placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
            with self.graph.inserting_after(placeholders[-1] if placeholders else None):
                self._track(fake, self.graph.placeholder(name))
        return torch_compat.to_functional(fake)

    def add_memory(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Add a placeholder after the existing ones, for memory in the layout of `like`. Returns its fake."""
        value = torch_compat.from_functional(like)
        with torch_compat.hidden_tracing_modes(), torch.no_grad():
            fake = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
            placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
            with self.graph.inserting_after(placeholders[-1]):
                self._track(fake, self.graph.placeholder(name))
        return fake

    def announce_hook(self, node: Any, held: Sequence[Any]) -> None:
        """Tell `on_hook` that a hook of an autograd node is about to run, and what the hook holds."""
        if self.on_hook is not None:
            self.on_hook(node, held)

    def make_effect_token(self) -> torch.Tensor:
        """The token that orders effectful ops while they are recorded; a pass removes it."""
        with torch_compat.hidden_tracing_modes():
            token = torch.empty(0)
            self._track(token, self.graph.call_function(torch.ops.aten.empty.memory_format, ([0],)))
        return token

    def settle(self, results: Sequence[Any], arguments: Sequence[Any]) -> None:
        """Bring the values that outlive the run of the function up to date.

        Raises:
            CaptureError: a value misses a write, or is a state of the random generator.
        """
        bases = [value._base for value in results if isinstance(value, torch.Tensor)]
        torch_compat.keep_lazy_bits([*results, *bases, *arguments])
        try:
            torch_compat.check_pieces(self._functional_mode, [*results, *arguments])
        except RuntimeError as error:
            raise CaptureError(EXPLANATIONS[str(error)]) from None
        self._generators.reject_states([*results, *self.constants()])

    def _track(self, value: Any, node: fx.Node) -> None:
        metadata = torch_compat.metadata_of(value)
        if metadata is None:
            node.meta["val"] = value
            torch_compat.track_tensor_tree(value, fx.Proxy(node, self.recorder), constant=None, tracer=self.recorder)
            return
        self.recorder.tensor_tracker.add(value, node)
        node.meta.update(val=torch_compat.detached_fake(value), tensor_meta=metadata.described)

    def node_of(self, value: Any) -> fx.Node:
        """The node that computes the current value of a live functional tensor or symbolic number."""
        if isinstance(value, torch.Tensor):
            value = torch_compat.from_functional(value)
        node = torch_compat.proxy_node(value, self.recorder)
        if node is None:
            raise CaptureError(UNSEEN)
        return node

    def replay_views(self, value: torch.Tensor, root: fx.Node) -> fx.Node:
        """The node that replays the recorded views of `value` from `root`, the current value of its storage."""
        with torch_compat.hidden_tracing_modes():
            base = root.meta["val"].detach()
        torch_compat.track_tensor_tree(base, fx.Proxy(root, self.recorder), constant=None, tracer=self.recorder)
        with torch_compat.disable_functional_mode(), torch.no_grad():
            view = torch_compat.with_recorded_views(value, base)
        node = torch_compat.proxy_node(view, self.recorder)
        assert node is not None, "it was recorded just now"
        return node

    def origin_of(self, sequence_nr: int) -> dict[str, Any]:
        return self.recorder.origin_of(sequence_nr)

    def attribute_to(self, origin: dict[str, Any] | None) -> None:
        self.recorder.attribute_to(origin)

    def constants(self) -> list[torch.Tensor]:
        """The real tensors in the graph that the function closed over or made from numbers; none from passes."""
        values = (getattr(self.recorder.root, node.target, None) for node in self.graph.find_nodes(op="get_attr"))
        return list({id(value): value for value in values if isinstance(value, torch.Tensor)}.values())

    def module(self) -> fx.GraphModule:
        """The graph as a module, with the constants of the trace as attributes, each read by one node."""
        first: dict[Any, fx.Node] = {}
        for node in self.graph.find_nodes(op="get_attr"):
            if first.setdefault(node.target, node) is not node:
                node.replace_all_uses_with(first[node.target])
                self.graph.erase_node(node)
        module = LazyGraphModule(self.recorder.root, self.graph)
        for node in self.graph.find_nodes(op="get_attr"):
            constant = getattr(module, node.target)
            if isinstance(constant, torch.Tensor):
                known = node.meta.get("val")
                fake = self._fake_mode.from_tensor(constant, static_shapes=True) if known is None else known
                node.meta["val"] = torch_compat.negated_as(fake, constant)
        return module


def tangent_like(fake: torch.Tensor) -> torch.Tensor:
    """A fake with the strides of a tangent of `fake`: its own strides if dense, else contiguous."""
    return torch.empty_like(fake, memory_format=torch.preserve_format)


def capture_function(
    function: FlatFunction,
    convention: CallingConvention,
    fake_mode: FakeTensorMode,
    decompositions: Mapping[Any, Callable],
    values: ValueReads | None = None,
    islands: Islands | None = None,
    keep: Collection[Any] = (),
) -> Capture:
    """Run `function` once on fake inputs.

    Args:
        function: takes one value per argument, returns a flat sequence.
        convention: the inputs, from `fake.make_input_specs`, and which of them the function takes.
        fake_mode: the mode of the inputs' fake tensors.
        decompositions: op overload -> function, applied while recording.
        values: answers questions about values of tensors; by default they are errors.
        islands: the functions that are not traced, but become single ops; by default a marked function is an error.
        keep: functions whose calls are noted, see `kept_calls`.

    Raises:
        CaptureError: the function needs a tensor's value, or returns something that cannot be traced. The function's own
            errors pass through unchanged. Real inputs are never touched.
    """
    if any(isinstance(spec, TensorInput) and spec.requires_grad for spec in convention.inputs):
        decompositions = {op: rule for op, rule in decompositions.items() if op not in torch_compat.FOR_INFERENCE_ONLY}
    values, changing = values or ValueReads(Level.NONE, ()), NO_REGIONS
    while True:
        trace = Trace(fake_mode, decompositions, values, has_symbolic_inputs(convention), changing)
        values.begin(trace.recorder, fake_mode, convention)
        capture = run_traced(trace, function, convention, values, islands, keep)
        if not (found := trace.regions_to_retrace()):
            return capture
        changing = {**changing, **found}


@dataclass(frozen=True)
class Observers:
    """Records of what the function does and its graph does not show. `joins`: see `gradient_aliases`."""

    assignments: torch_compat.Assignments
    reshapes: torch_compat.ReshapedViews
    hooks: HookRecords
    views: views_before_mutation.ViewVersions | None
    joins: list[gradient_aliases.Join]
    outside: OutsideMemoryUses


@contextlib.contextmanager
def observe(
    trace: Trace, convention: CallingConvention, arguments: Sequence[Any], islands: Islands | None, keep: Collection[Any]
) -> Iterator[Observers]:
    """Inside, the function runs, with handlers for the calls that no op shows."""
    outside = trace.outside_memory(convention, arguments, islands)
    eager_calls = EagerCallRecorder(islands, trace.recorder, convention, outside)
    trace.eager_calls = eager_calls.calls
    assignments = trace.assignments(arguments)
    reshapes = torch_compat.ReshapedViews(arguments, views_of_leaves(convention.inputs, arguments))
    hooks = HookRecords(arguments, trace.announce_hook)
    views = views_before_mutation.view_versions(convention.inputs)
    versions = shared_versions(convention, arguments)
    index_marks = IndexMarks(trace.recorder) if has_symbolic_inputs(convention) else None
    attention = torch_compat.JaggedAttention()
    kept = KeptCalls(trace, keep) if keep else None
    opened = torch_compat.functions_calling(keep) - set(keep) if keep else ()
    calls = (SymbolicLiterals(), CastingCalls(trace.noting_autocast), eager_calls, kept)
    handlers = (assignments, reshapes, hooks, views, versions, index_marks, attention, *calls)
    with (
        assignments,
        FunctionHandlers([handler for handler in handlers if handler is not None], opened),
        gradient_aliases.collected() as joins,
        trace.watch_draws(),
        trace.checkpoints(),
        rerun_context(eager_calls.active),
        trace.opened.collecting(),
        torch_compat.report_backwards(trace.inner_backward),
        torch_compat.noted_materialization(),
        torch_compat.refused_parallel_modules(),
        torch_compat.separate_results_of_scans(),
    ):
        yield Observers(assignments, reshapes, hooks, views, joins, outside)


def run_traced(
    trace: Trace,
    function: FlatFunction,
    convention: CallingConvention,
    values: ValueReads,
    islands: Islands | None = None,
    keep: Collection[Any] = (),
) -> Capture:
    """Run `function` once, with `trace` recording."""
    grad_mode_before = torch.is_grad_enabled()
    with trace.active(), restored_grad_mode(), torch_compat.tracked_views():
        primals, arguments = _make_inputs(trace, convention)
        before = tuple(map(input_state, arguments))
        with observe(trace, convention, arguments, islands, keep) as seen:
            results = tuple(run_user_function(function, [arguments[k] for k in convention.order]))
        grad_mode_after = torch.is_grad_enabled()
        seen.outside.reject_after(trace.constants())
        trace.settle(results, arguments)
        new_leaves = inputs_that_come_to_require_grad(convention.inputs, arguments)
        ended = inputs_that_cease_to_require_grad(convention.inputs, arguments)
        hooks = (*(InputHook(k, "requires_grad_", ()) for k in sorted(new_leaves)), *take_hooks(arguments))
        output_hooks = take_hooks_of_views(results, arguments)
        outputs = (*results, *views_before_mutation.used_views(seen.views, arguments, results))
        older_views = views_before_mutation.older_views(seen.views, outputs)
        views_before_mutation.reject_strided_views(seen.views, arguments, results)
        reject_old_memory(trace, seen.assignments.before, arguments, outputs)
        assigned = {index: len(outputs) + k for k, index in enumerate(seen.assignments.before)}
        outputs += tuple(torch_compat.detached_functional(arguments[index]) for index in assigned)
        written = write_times(trace.writes, arguments, results, trace.node_of)
    nodes_with_hooks = seen.hooks.hooked_nodes([*outputs, *arguments])
    return Capture(
        *(trace, convention, primals, arguments, before, outputs, len(results)),
        *(grad_mode_before, grad_mode_after, hooks, gradient_aliases.positions(seen.joins, arguments)),
        output_hooks=output_hooks,
        older_views=older_views,
        hooked_nodes=nodes_with_hooks | seen.hooks.nodes,
        nodes_with_hooks=nodes_with_hooks,
        hidden_reshapes=frozenset(seen.reshapes.hidden),
        values=values,
        new_leaves=new_leaves,
        assigned=assigned,
        ended=ended,
        written=written,
    )


def reject_old_memory(
    trace: Trace, before: Mapping[int, torch.Tensor], arguments: Sequence[Any], outputs: Sequence[Any]
) -> None:
    """Raise if an argument is given other memory, and its old memory is written to or returned.

    Raises:
        CaptureError
    """
    for index, old in before.items():
        argument, node = arguments[index], trace.node_of(old)
        tensors = [value for value in outputs if torch_compat.any_functional([value]) and torch_compat.has_storage(value)]
        is_returned = any(torch_compat.storage_id(value) == torch_compat.storage_id(old) for value in tensors)
        if is_returned or node.op != "placeholder" or any(value._base is argument for value in tensors):
            raise CaptureError(
                "an argument is given another memory, by `x.data = ...` or `x.set_(...)`, and it is also changed in place, "
                "or a view of it is returned; do one of the two outside of the compiled function, or return a clone()"
            )


def inputs_that_come_to_require_grad(inputs: Sequence[InputSpec], arguments: Sequence[Any]) -> frozenset[int]:
    """The inputs that are leaves and require grad now, but did not before."""
    pairs = enumerate(zip(inputs, arguments, strict=True))
    plain = [(k, value) for k, (spec, value) in pairs if isinstance(spec, TensorInput) and not spec.requires_grad]
    return frozenset(k for k, value in plain if value.requires_grad and value.is_leaf)


def inputs_that_cease_to_require_grad(inputs: Sequence[InputSpec], arguments: Sequence[Any]) -> frozenset[int]:
    """The inputs that required grad and do not now. Restores the flag of leaves: results computed from them need it."""
    found: set[int] = set()
    for index, (spec, value) in enumerate(zip(inputs, arguments, strict=True)):
        if isinstance(spec, TensorInput) and spec.requires_grad and not value.requires_grad:
            found.add(index)
            value.requires_grad_(spec.is_leaf)
    return frozenset(found)


def has_symbolic_inputs(convention: CallingConvention) -> bool:
    """Whether a size or stride of an input is symbolic."""
    return any(not isinstance(spec, SymInput) and torch_compat.has_symbolic_shape(spec.fake) for spec in convention.inputs)


def views_of_leaves(inputs: Sequence[InputSpec], arguments: Sequence[Any]) -> list[torch.Tensor]:
    """The arguments that are views of leaves: autograd allows no in-place change of their views."""
    pairs = zip(inputs, arguments, strict=True)
    return [argument for spec, argument in pairs if isinstance(spec, TensorInput) and spec.is_view_of_leaf]


@contextlib.contextmanager
def restored_grad_mode() -> Iterator[None]:
    """Restore the grad mode afterwards: the function may change it, and that must not leak out of the trace."""
    before = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_grad_enabled(before)


def _make_inputs(trace: Trace, convention: CallingConvention) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    with torch_compat.hidden_tracing_modes():
        for spec in convention.inputs:
            if not isinstance(spec, MemberInput):
                trace.add_input(spec)
    primals = make_primals(convention.inputs)
    with trace.making_arguments():
        return tuple(primals), tuple(make_arguments(convention.inputs, primals))


def run_user_function(function: FlatFunction, arguments: Sequence[Any]) -> Sequence[Any]:
    """Call the function; explain errors about tracing. The search for user frames stops here."""
    try:
        return function(*arguments)
    except AOTGradError:
        raise
    except Exception as error:
        explained = explain_error(error)
        if explained is None:
            raise
        raise explained from error


DATA_DEPENDENT = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")

READS_MEMORY = (
    "the memory of a tensor is read, at {line}. It has none while tracing: do this outside of the compiled function"
)


class OwnGeneratorError(CaptureError):
    """A random op draws from a generator whose state is no input of the trace; see `OwnGenerator`."""

    def __init__(self, line: str, cause: torch_compat.OwnGenerator) -> None:
        super().__init__(
            f"a random op draws from a torch.Generator of its own, at {line}. Make it outside of the compiled function, or "
            "use the default generator"
        )
        self.generator, self.drawn = cause.generator, cause.drawn


EXPLANATIONS = {
    "Cannot access data pointer": READS_MEMORY,
    "Cannot access storage": READS_MEMORY,
    "invalid python storage": ("the storage of an input is resized, at {line}. Do this outside of the compiled function"),
    "mutating a non-functional tensor": (
        "a tensor that is no argument of the function is changed in place, at {line}. "
        "Pass it as an argument, so that the change reaches it on every call"
    ),
    "layout_impl is only implemented": (
        "an operation on a sparse tensor cannot be traced, at {line}. Do this outside of the compiled function"
    ),
    "mutating a sparse tensor": (
        "a sparse tensor is changed in place, at {line}. Compute a new one instead, or do this outside of the compiled "
        "function"
    ),
    "mutation on a view chain": (
        "an as_strided() view, or a view of one, is changed in place, at {line}. Change the tensor that it was made from, "
        "use other view ops, or clone() first"
    ),
    "mutated that has internal overlap": (
        "a view is changed in place, and several of its elements are the same memory, at {line}. "
        "Change the tensor that it was made from, or clone() first"
    ),
    "must be divisible by": (
        "a tensor is viewed as another dtype and changed in place, or has no view as that dtype, at {line}. "
        "Change the tensor that the view was made from, or clone() first"
    ),
    "as_strided and a write to the same memory": (
        "a tensor is changed in place and viewed by as_strided(), at {line}, and the graph does not keep its layout in "
        "memory. Use other view ops, or clone() first"
    ),
    "must be 1 to view": (
        "a tensor that is viewed as another dtype is changed in place, or has no view as that dtype, at {line}. "
        "Change the tensor that the view was made from, or clone() first"
    ),
    "numpy() is not supported": (
        "a tensor is turned into a NumPy array, at {line}. It has no values while tracing: use torch's own functions, "
        "{island}, or do this outside of the compiled function"
    ),
    "resize a view tensor to a larger size": (
        "an input is resized beyond its storage, at {line}. Allocate it large enough before the call, or do this outside "
        "of the compiled function"
    ),
    "view of a tensor whose metadata was changed": (
        "a view is used after the size or stride of its base was changed in place (t_, unsqueeze_, ...), at {line}. "
        "Make the view after that change, or use t(), unsqueeze(), ... instead"
    ),
    torch_compat.ANOTHER_STORAGE: (
        "a tensor is given another storage, by `x.data = ...` or `x.set_(...)`, at {line}. This is not possible if the "
        "storage has another dtype or device or is from outside of the function, if the tensor is a view, or if it requires "
        "grad and gets another layout or set_() is called. Use x.copy_(...), or do this outside of the compiled function"
    ),
    torch_compat.COMMUNICATES_IN_PLACE: (
        "an op of torch.distributed sends or fills a tensor in place, at {line}. Use the functional collectives of "
        "torch.distributed._functional_collectives or torch.compile, or do this outside of the compiled function"
    ),
    torch_compat.PARALLEL_MODULE: (
        "a module with fully_shard (FSDP), replicate or DistributedDataParallel is called, at {line}, and communicates "
        "outside of the graph. Compile what is inside of it, as in fully_shard(aot_module(block)), or use torch.compile"
    ),
    torch_compat.RESHAPED_CONVERSION: (
        "the size or stride of a conjugated view, or of a view as another dtype, is changed in place, at {line}. Eager's "
        "gradients ignore that change: use t(), unsqueeze(), ... instead of t_(), unsqueeze_(), ..."
    ),
    "are out of bounds for storage of size": (
        "as_strided() or as_strided_() reaches beyond the memory of a tensor, at {line}. A trace knows the memory of an "
        "input only up to its last element: pass the tensor that the input is a view of"
    ),
    "unsafe_split and a write to the same memory": (
        "unsafe_chunk() or unsafe_split() makes pieces of a tensor, the tensor or a piece is changed in place, and the "
        "other one is an input, or is used or returned afterwards; use chunk() or split()"
    ),
    torch_compat.REENTRANT_WITHOUT_GRADIENT: (
        "torch.utils.checkpoint with use_reentrant=True returns a tensor that depends on nothing that requires grad, at "
        "{line}, and would make it require grad: pass use_reentrant=False"
    ),
    torch_compat.ENTANGLED_LIST: (
        "several tensors of a list that is changed in place share memory and require grad, at {line}. Change them one by one"
    ),
    "normal_ of a tensor with gaps": (
        "normal_() fills a tensor whose elements are not adjacent in memory, at {line}, and would draw its numbers in "
        "another order. Use x.copy_(torch.randn(x.shape)), or do this outside of the compiled function"
    ),
    "writing through an expanded tensor": (
        "an expanded tensor is changed in place, at {line}. Several of its elements are the same memory: "
        "change the tensor that was expanded, or clone() first"
    ),
}
"""Parts of torch's messages about tracing -> what they mean for the user."""


def explain_error(error: Exception) -> CaptureError | None:
    """A `CaptureError` if `error` is about tracing; `None` if it is the function's own."""
    if isinstance(error, torch_compat.OwnGenerator):
        return OwnGeneratorError(user_line_of(error), error)
    message = next((text for part, text in EXPLANATIONS.items() if part in str(error)), None)
    if type(error).__name__ in DATA_DEPENDENT:
        message = (
            "Python control flow or a Python number depends on the value of a tensor, at {line}. A graph has one path: "
            "use torch.where, or take the value outside of the compiled function"
        )
    if message is None:
        return None
    explained = CaptureError(message.format(line=user_line_of(error), island=how_to_make_an_island(error)))
    add_note(explained, f"{type(error).__name__}: {error}")
    return explained


def user_line_of(error: Exception) -> str:
    """`file:line: code` of the innermost user frame of `error`, or of the node of Dynamo's graph that ran."""
    frames = user_frames_of(error)
    if not frames:
        return printed_line(str(error))
    code, line = frames[-1]
    return f"{code.co_filename}:{line}: {linecache.getline(code.co_filename, line).strip()}"


def how_to_make_an_island(error: Exception) -> str:
    """What to do so that the code that raised `error` is not traced: the function of the innermost user frame has a name."""
    frames = user_frames_of(error)
    if len(frames) < 2:
        return "do this in a function that you mark by aotgrad.island"
    code, _ = frames[-1]
    name = getattr(code, "co_qualname", code.co_name)  # the first one from Python 3.11 on
    return f"mark {name} at {code.co_filename}:{code.co_firstlineno} by aotgrad.island"


def user_frames_of(error: Exception) -> list[tuple[CodeType, int]]:
    """The code and the current lines of the frames of `error` that are no library's; the first is the traced function."""
    frames = ((frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__))
    return [(code, line) for code, line in frames if not code.co_filename.startswith(LIBRARY_FOLDERS)]
