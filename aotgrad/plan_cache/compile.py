"""How a plan is made: a call that no plan fits is traced and compiled, and gets the guards that find it again.

    request = Request(key, function, arguments, static_count, state)
    make_plan(request, compiler, "f", earlier plans)     a `CachedPlan`

Errors of the function and refusals of ours are raised; what they mean for the call is the cache's business.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import native, passes, pipeline, torch_compat
from aotgrad.capture.values import ValueReads
from aotgrad.convention import Dedupe, MemorySharing
from aotgrad.errors import AOTGradError, CaptureError, UnsupportedAliasingError
from aotgrad.guards.data_dependent import Level
from aotgrad.guards.memory import MemoryGuard
from aotgrad.guards.plan import PlanGuards, structure_key
from aotgrad.guards.tensor_properties import FACTS, PropertyReads
from aotgrad.ir import InputHint, SymInput
from aotgrad.pipeline import Compiler, Executable, SmallGraph, Source, TracedJoint
from aotgrad.plan_cache.arguments import Arguments, FlatOutput
from aotgrad.plan_cache.entry import AmbientState, CachedPlan, Stages
from aotgrad.runtime.steps import MakeView, UpdateGeometry

log = logging.getLogger("aotgrad.guards.plan")


def key_of(arguments: Arguments, state: Hashable) -> tuple:
    """What a call finds its plans by, before guards: its structure and constants, the state, and the passes there are."""
    return structure_key(arguments.constants, arguments.spec, (state, passes.generation()))


@dataclass(frozen=True)
class Request:
    """A call that no plan fits.

    Attributes:
        key: what its plans are found by.
        function: takes the nested arguments.
        static_count: how many leading tensors are parameters or buffers.
        state: what else the trace depends on.
        known: tensors that hold what the function would compute; determined by `state`.
    """

    key: tuple
    function: Callable
    arguments: Arguments
    static_count: int
    state: AmbientState
    known: passes.KnownValues | None = None

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        return self.arguments.tensors

    def is_unchanged(self) -> bool:
        """Whether the call would still look for the same plans: a trace may have changed what they depend on."""
        return key_of(self.arguments, self.state.reread()) == self.key


def make_plan(
    request: Request,
    compiler: Compiler,
    name: str,
    earlier: Sequence[CachedPlan],
    check: Callable[[Stages], None] | None = None,
) -> CachedPlan:
    """Trace and compile the function of a request.

    Args:
        compiler: how.
        name: what the log calls the function.
        earlier: plans with the same key: they say which sizes change.
        check: may refuse what was made by raising.
    """
    start_ns = time.perf_counter_ns()
    reject_own_rules(request.tensors)
    dedupe, known = Dedupe.of(request.tensors), request.known
    tensors, function = dedupe.enter(request.tensors), FlatCall.of(request, dedupe)
    attempts = SpecializationRetry(
        compiler,
        name,
        function,
        tensors,
        hints=dedupe.enter(hints_of(request, compiler, earlier)),
        known=known and known.at(dedupe.positions),
    )
    first = max((plan.guards.values.level for plan in earlier if plan.guards.values is not None), default=Level.NONE)
    executable = attempts.from_level(first, request.is_unchanged)
    function.reads.check(tensors)
    if check is not None:
        check(executable)
    guards = make_guards(executable, dedupe, tensors, function.reads)
    return CachedPlan(executable, guards, function.output, time.perf_counter_ns() - start_ns)


@dataclass(frozen=True, eq=False)
class FlatCall:
    """A function of the distinct tensors of a call that returns a flat list; notes how its results are put together.

    It outlives the call, whose tensors it does not keep alive, but for parameters.
    """

    function: Callable
    arguments: Arguments
    dedupe: Dedupe
    parameters: Sequence[torch.Tensor | None]
    output: FlatOutput
    reads: PropertyReads

    @classmethod
    def of(cls, request: Request, dedupe: Dedupe) -> FlatCall:
        parameters = [tensor if is_parameter(tensor) else None for tensor in dedupe.enter(request.tensors)]
        return cls(request.function, request.arguments.without_tensors(), dedupe, parameters, FlatOutput(), PropertyReads())

    def __call__(self, *distinct: torch.Tensor) -> list[Any]:
        torch_compat.mark_parameters(distinct, self.parameters)
        args, kwargs = self.arguments.rebuild(self.dedupe.exit(distinct))
        before = Arguments.of(args, kwargs)
        with self.reads.of(distinct):
            result = self.function(*args, **kwargs)
        check_containers(before, Arguments.of(args, kwargs))
        return self.output.flatten(result)


@dataclass(frozen=True)
class SpecializationRetry:
    """The ways to compile a flat function, which are tried one after the other.

    Attributes:
        compiler: how it is compiled.
        name: what the log calls it.
        tensors: its distinct arguments.
        known: see `Request`.
    """

    compiler: Compiler
    name: str
    function: Callable
    tensors: Sequence[torch.Tensor]
    hints: Sequence[InputHint]
    known: passes.KnownValues | None

    def from_level(self, first: Level, is_unchanged: Callable[[], bool]) -> Stages:
        """Compile; if that fails, and the function has asked about values, once more with answers for this call.

        Answers for values of which a plan before this one needed some are given at once: those of level `first`. A function
        that has changed what its plan depends on is not traced again: it would change that twice.
        """
        if self.compiler.lower is None:  # there are no guards of values
            return self.with_answers(None)
        for level in Level:
            if level < first:
                continue
            values = ValueReads(level, self.tensors)
            try:
                return self.with_answers(values)
            except Exception as error:
                if level is max(Level) or not values.asked or not is_unchanged():
                    raise
                log.info("%s: traced again with %s, after %s: %s", self.name, level, type(error).__name__, error)
                forget_frames(error)
        raise AssertionError("the last level returns or raises")

    def with_answers(self, values: ValueReads | None) -> Stages:
        """Compile with symbolic sizes, or with static ones where torch has no shape function for an op of the function."""
        try:
            return self.compile(self.hints, values)
        except Exception as error:
            if not (torch_compat.lacks_shape_function(error) and any(hint.dynamic_dims for hint in self.hints)):
                raise
            log.info("%s: its sizes are static, since one of its ops has no shape function: %s", self.name, error)
        return self.compile([InputHint(hint.static) for hint in self.hints], values)

    def compile(self, hints: Sequence[InputHint], values: ValueReads | None) -> Stages:
        return pipeline.compile(Source(self.function, self.tensors, hints, self.known, values), self.compiler)


def hints_of(request: Request, compiler: Compiler, earlier: Sequence[CachedPlan]) -> list[InputHint]:
    """Which tensors of a call are static, and which of their sizes are symbolic."""
    dynamic = compiler.options.dynamic
    like = [plan for plan in earlier if dynamic is None and len(plan.guards.dedupe.positions) == len(request.tensors)]
    fixed, symbolic = request.arguments.fixed_count, request.arguments.symbolic
    hints = [
        hint_of(tensor, k < request.static_count, dynamic, [traced_fake(plan, k) for plan in like], symbolic.get(k))
        for k, tensor in enumerate(request.tensors[: len(request.tensors) - fixed])
    ]
    return [*hints, *[InputHint()] * fixed]


def hint_of(
    tensor: torch.Tensor,
    static: bool,
    dynamic: bool | None,
    seen: Sequence[torch.Tensor],
    symbolic: frozenset[int] | None = None,
) -> InputHint:
    """`dynamic=True`: every size of what is no parameter; `None`: sizes that differ from what earlier plans have `seen`.

    If it is known which sizes are `symbolic`, those are.
    """
    if tensor.is_conj() or tensor.is_neg():
        return InputHint(static, frozenset())  # torch makes symbolic fakes of these with other strides
    dims = torch_compat.dims_marked_dynamic(tensor)
    if symbolic is not None:
        return InputHint(static, dims | symbolic)
    if dynamic and not static:
        dims = frozenset(range(tensor.dim()))
    elif dynamic is None and not static:
        dims |= {d for d in range(tensor.dim()) for fake in seen if differs(fake, tensor, d)}
    return InputHint(static, dims)


def traced_fake(plan: CachedPlan, position: int) -> torch.Tensor:
    convention = plan.executable.capture.convention
    spec = convention.inputs[convention.order[plan.guards.dedupe.positions[position]]]
    assert not isinstance(spec, SymInput), "it stands for a tensor"
    return spec.fake


def differs(fake: torch.Tensor, tensor: torch.Tensor, dim: int) -> bool:
    """Whether a size is another one than traced, or was symbolic already."""
    if fake.dim() != tensor.dim():
        return False
    size = fake.size(dim)
    return not isinstance(size, int) or size != tensor.size(dim)


@dataclass
class TracedOnce:
    """A function that is traced; remembers what it raised, unless that is a refusal of ours."""

    function: Callable
    raised: Exception | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.function(*args, **kwargs)
        except AOTGradError:
            raise
        except Exception as error:
            self.raised = error
            raise


def forget_frames(error: BaseException | None) -> None:
    """Free what the frames hold that an error came through: the arguments, and a trace of them."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def is_parameter(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter)


def reject_second_run(plan: CachedPlan) -> None:
    """Raise if the function, which changed an attribute or object while it was traced, would run once more.

    Raises:
        CaptureError
    """
    if isinstance(plan.executable, SmallGraph):
        raise CaptureError(
            "the function changes an attribute of a module or an object that it was given, and its graph is too small to be "
            "compiled, so it would do so twice; set the option min_graph_ops to 0"
        )


def reject_own_rules(tensors: Sequence[torch.Tensor]) -> None:
    """Raise if an argument has rules for operations that a trace does not see.

    Raises:
        CaptureError: names the argument and its class.
    """
    for position, tensor in enumerate(tensors):
        if tensor.layout is torch.strided and torch_compat.has_own_function_rules(type(tensor)):
            raise CaptureError(
                f"tensor argument {position} is a {type(tensor).__name__}, whose __torch_function__ a trace does not call; "
                "pass a plain tensor, x.as_subclass(torch.Tensor)"
            )


def check_containers(before: Arguments, after: Arguments) -> None:
    """Raise if the function changed a list or dict that it was given: the caller's own would not change.

    Raises:
        CaptureError
    """
    leaves = [[*map(id, given.tensors), *(id(value) for _, value in given.constants)] for given in (before, after)]
    if before.spec != after.spec or leaves[0] != leaves[1]:
        raise CaptureError(
            "the function changes a list, dict or other container that it was given, which later calls would not do; "
            "make a new one and return it"
        )


def make_guards(executable: Stages, dedupe: Dedupe, tensors: Sequence[torch.Tensor], reads: PropertyReads) -> PlanGuards:
    """The guards of a plan that was just traced for `tensors`."""
    fakes: list[Any] = [spec.fake for spec, _ in executable.arguments if not isinstance(spec, SymInput)]
    sharing = executable.sharing(tensors)
    changed = {*sharing.mutated, *sharing.bumped}
    wanted = reads.found | facts_needed(executable, tensors, changed)
    return PlanGuards(
        dedupe=dedupe,
        global_state=torch_compat.GlobalState(),
        tensors=torch_compat.TensorGuard(tensors, fakes, native.offered("tensor_check", None)),
        memory=memory_guard(executable, tensors, sharing, fakes) if changed else None,
        facts=tuple((k, name, FACTS[name](tensors[k])) for name, k in sorted(wanted)),
        shapes=torch_compat.shape_guards(fakes) if any(map(torch_compat.is_symbolic, fakes)) else None,
        values=executable.value_guard,
    )


def memory_guard(
    executable: Stages,
    tensors: Sequence[torch.Tensor],
    sharing: MemorySharing,
    fakes: Sequence[Any],
) -> MemoryGuard:
    """The guard of a plan that changes inputs: what the function closed over is read, and must be somewhere else.

    Raises:
        UnsupportedAliasingError
    """
    constants = [] if isinstance(executable, SmallGraph) else executable.capture.trace.constants()
    everything = [*tensors, *constants]
    found = MemorySharing.among(everything, sharing.mutated, sharing.hidden, sharing.bumped)
    if found.groups != sharing.groups:
        raise UnsupportedAliasingError(
            "the function changes an input that shares memory with a tensor which it closed over (a global, or an attribute "
            "of an object); pass that tensor as an argument too"
        )
    return MemoryGuard(everything, found, [*fakes, *constants], closure=constants)


def facts_needed(executable: Stages, tensors: Sequence[torch.Tensor], changed: Collection[int]) -> set[tuple[str, int]]:
    """What a plan depends on besides the graph: it writes to leaves, or places tensors within their storages."""
    leaves = {k for k in changed if tensors[k].requires_grad}
    planned = isinstance(executable, Executable)
    absolute = any(map(uses_geometry, executable.plan.steps)) if planned else isinstance(executable, TracedJoint)
    placed = absolute or executable.capture.trace.asks_for_offsets
    offsets = {k for k, tensor in enumerate(tensors) if placed and tensor.layout is torch.strided}
    views = ("is a view", "is a hooked view", "is a converted view", "is a view of a leaf", "is forbidden after a write")
    kinds = ("is a leaf", *views)
    return {*((kind, k) for kind in kinds for k in leaves), *(("storage offset", k) for k in offsets)}


def uses_geometry(step: Any) -> bool:
    """Whether a step lays a tensor out by absolute size, stride and offset."""
    if isinstance(step, UpdateGeometry):
        return True
    as_strided = torch.ops.aten.as_strided.default
    return isinstance(step, MakeView) and any(view.op is as_strided for view in step.replay.steps)
