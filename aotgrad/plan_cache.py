"""The plans of one compiled function: found by guards, made on a miss, limited in number.

    f = aotgrad.aot_function(fn, aotgrad.nop)
    f(torch.ones(2)); f(torch.ones(3))
    [plan.hits for plan in f.plans()]          [0, 0]: two plans
    aotgrad.clear_cache(f)

A hit takes no lock. Threads that miss at once compile once. A function that is called inside another trace is inlined.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import traceback
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from aotgrad import native, passes, torch_compat
from aotgrad.capture.flatten import Arguments, FlatOutput
from aotgrad.capture.values import ValueReads
from aotgrad.convention import Dedupe, MemorySharing
from aotgrad.counters import counters
from aotgrad.errors import AOTGradError, CaptureError, EagerError, UnsupportedAliasingError
from aotgrad.guards import PlanGuards, structure_key
from aotgrad.ir import InputHint
from aotgrad.jvp import CompiledJvp, reject_aliases
from aotgrad.locks import COMPILING
from aotgrad.memory import MemoryGuard
from aotgrad.pipeline import Executable, SmallGraph, TracedJoint
from aotgrad.reads import FACTS, Reads
from aotgrad.runtime.steps import MakeView, UpdateGeometry
from aotgrad.transforms import CompiledTransforms, reject_changes, reject_what_transforms_see
from aotgrad.value_guards import Level

if TYPE_CHECKING:
    from aotgrad.recipe import Recipe

DISABLED = "the option `enabled` is off"
OBSERVED = "a trace, mode or transform watches every op"
TOO_MANY = "the limit of plans is reached"
RAISES = "the function raises while it is traced"

Stages = Executable | TracedJoint | SmallGraph
"""How far a plan was made: compiled, traced up to the joint graph, or not worth it."""

log = logging.getLogger("aotgrad.guards")
_thread = threading.local()


@dataclass(frozen=True)
class State:
    """What a call depends on besides its arguments.

    Attributes:
        eager: the function that runs in place of a plan, with the user's arguments.
        value: hashable.
        reread: gives `value` again after a trace, which may have changed it.
    """

    eager: Callable[..., Any]
    value: Hashable = None
    reread: Callable[[], Hashable] = lambda: None


@dataclass(frozen=True)
class NoPlan:
    """Why a call has no plan; `error` is what the function raised while it was traced, if it did."""

    reason: str
    error: Exception | None = None


@dataclass(eq=False)
class CachedPlan:
    """One plan with its guards; `hits` counts calls after the first, `compile_ns` is how long it took to make."""

    executable: Stages
    guards: PlanGuards
    output: FlatOutput
    compile_ns: int
    hits: int = 0

    def __post_init__(self) -> None:
        self.reference = weakref.ref(self)

    def __call__(self, state: State, arguments: Arguments) -> Any:
        """Run the plan, which was made for arguments like these."""
        _thread.last_executed = self.reference
        if isinstance(self.executable, SmallGraph):
            return state.eager(*arguments.args, **arguments.kwargs)
        dedupe, tensors = self.guards.dedupe, list(arguments.tensors)
        flat = self.executable(tensors if dedupe.is_identity else dedupe.enter(tensors))
        return self.output.unflatten(flat)


@dataclass(frozen=True)
class PlainCalls:
    """The calls of one plan with nothing but distinct tensors as arguments: they find it before anything else is tried.

    Attributes:
        admits: whether it is the plan for these arguments.
        state: see `State.value`.
        run: takes the tensors in a list, which it clears.
    """

    admits: Callable[[Sequence[Any]], bool]
    state: Hashable
    run: Callable[[list], Any]

    @classmethod
    def of(cls, plan: CachedPlan, state: Hashable, generation: int) -> PlainCalls | None:
        """Those of a plan; `None` if it has no such calls."""
        admits = plan.guards.plain_check(generation)
        if admits is None or not isinstance(plan.executable, Executable):
            return None
        call, rebuild, reference = plan.executable.call, plan.output.rebuild, plan.reference

        def run(tensors: list) -> Any:
            plan.hits += 1
            counters["hits"] += 1
            _thread.last_executed = reference
            return rebuild(call(tensors))

        return cls(admits, state, run)


def last_executed() -> CachedPlan | None:
    """The plan that ran last in this thread, as long as its function is alive."""
    plan = getattr(_thread, "last_executed", None)
    return None if plan is None else plan()


@dataclass
class PlanCache:
    """The plans of one function, by structure and then by guards. `check` may refuse an executable by raising.

    `plain` has the same plans by the number of tensors, as far as they have plain calls.
    """

    recipe: Recipe
    name: str
    check: Callable[[Stages], None] | None = None
    entries: dict[tuple, list[CachedPlan]] = field(default_factory=dict)
    plain: dict[int, tuple[PlainCalls, ...]] = field(default_factory=dict)
    fallbacks: Counter[str] = field(default_factory=Counter)
    warned: bool = False

    def plans(self) -> list[CachedPlan]:
        return [plan for entry in list(self.entries.values()) for plan in entry]

    def clear(self) -> None:
        with COMPILING:
            self.entries.clear()
            self.plain.clear()
            self.warned = False
            for name in ("jvp", "transformed"):
                self.__dict__.pop(name, None)

    @functools.cached_property
    def jvp(self) -> CompiledJvp:
        """What a call runs for which `runs_eagerly`: with dual numbers a compiled jvp, else the function itself."""
        return CompiledJvp(PlanCache(self.recipe, f"jvp of {self.name}", check=reject_aliases))

    @functools.cached_property
    def transformed(self) -> CompiledTransforms:
        """What a call runs inside of a `torch.func` transform."""
        recipe = self.recipe.of_transforms()
        plans = PlanCache(recipe, f"a transform of {self.name}", check=reject_what_transforms_see)
        derivatives = PlanCache(recipe, f"a derivative of {self.name}", check=reject_changes)
        flags = PlanCache(recipe.of_flags(), f"the flags of a derivative of {self.name}")
        return CompiledTransforms(plans, derivatives, flags, self.jvp)

    def runs_eagerly(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether no plan is looked for; counted by reason."""
        reason = self.why_eagerly(tensors)
        if reason is None:
            return False
        self.fallbacks[reason] += 1
        return True

    def why_eagerly(self, tensors: Sequence[torch.Tensor]) -> str | None:
        """Why no plan is looked for: options, or every op of the call matters to someone else."""
        if not self.recipe.options.enabled:
            return DISABLED
        return OBSERVED if torch_compat.ops_are_observed(tensors) else None

    def call(
        self,
        function: Callable,
        arguments: Arguments,
        static_count: int,
        state: State,
        known: passes.KnownValues | None = None,
    ) -> Any:
        """Run the plan for these arguments, after making it if there is none; see `plan_for`."""
        plan = self.plan_for(function, arguments, static_count, state, known)
        return self.run_eagerly(plan, state, arguments) if isinstance(plan, NoPlan) else plan(state, arguments)

    def plan_for(
        self,
        function: Callable,
        arguments: Arguments,
        static_count: int,
        state: State,
        known: passes.KnownValues | None = None,
        counts: bool = True,
    ) -> CachedPlan | NoPlan:
        """The plan for these arguments, which is made if there is none, or why there can be none.

        Args:
            function: takes the nested arguments.
            static_count: how many leading tensors are parameters or buffers.
            state: what else the trace depends on.
            known: tensors that hold what the function would compute; determined by `state`.
            counts: whether a plan that is found counts as used.
        """
        tensors = arguments.tensors
        key = structure_key(arguments.constants, arguments.spec, (state.value, passes.generation()))
        plan = self.find(key, tensors)
        if plan is None:
            return self.make(key, function, arguments, static_count, state, known)
        if counts:
            plan.hits += 1
            counters["hits"] += 1
        return plan

    def run_eagerly(self, missing: NoPlan, state: State, arguments: Arguments) -> Any:
        """The function itself. If it raised while it was traced, it does so again, with eager's error and its effects."""
        counters["fallbacks"] += 1
        self.fallbacks[missing.reason] += 1
        result = state.eager(*arguments.args, **arguments.kwargs)
        if missing.error is not None:
            warnings.warn(
                f"{self.name} ran eagerly: it raises {type(missing.error).__name__} while it is traced, though not when it "
                f"runs: {missing.error}",
                stacklevel=3,
            )
        return result

    def find(self, key: tuple, tensors: Sequence[torch.Tensor]) -> CachedPlan | None:
        for plan in self.entries.get(key, ()):
            if plan.guards.check(tensors):
                return plan
        return None

    def make(
        self,
        key: tuple,
        function: Callable,
        arguments: Arguments,
        static_count: int,
        state: State,
        known: passes.KnownValues | None,
    ) -> CachedPlan | NoPlan:
        """Compile a plan, or say why there is none."""
        with COMPILING:
            plan = self.find(key, arguments.tensors)
            if plan is not None:
                return plan
            counters["misses"] += 1
            self.explain_miss(key, arguments.tensors)
            if len(self.plans()) >= self.recipe.options.plan_limit:
                self.warn_once(key, arguments.tensors)
                return NoPlan(TOO_MANY)
            traced = TracedOnce(function)

            def is_unchanged() -> bool:
                return structure_key(arguments.constants, arguments.spec, (state.reread(), passes.generation())) == key

            try:
                plan = self.compile(key, traced, arguments, static_count, known, is_unchanged)
            except Exception as error:
                if error is traced.raised or isinstance(error, EagerError):
                    return NoPlan(RAISES, error)
                raise
            if not is_unchanged():
                reject_second_run(plan)
                key = (object(),)  # the function changes what the plan depends on: each call has to change it again
            elif isinstance(arguments.spec, int):
                self.add_plain(plan, len(arguments.tensors), state.value)
            counters["value_guards"] += plan.guards.values is not None
            self.entries[key] = [plan, *self.entries.get(key, ())]
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s: a new plan, used if\n%s", self.name, "\n".join(f"    {line}" for line in plan.guards.lines()))
            return plan

    def add_plain(self, plan: CachedPlan, count: int, state: Hashable) -> None:
        calls = PlainCalls.of(plan, state, passes.generation())
        if calls is not None:
            self.plain[count] = (calls, *self.plain.get(count, ()))

    def compile(
        self,
        key: tuple,
        function: Callable,
        arguments: Arguments,
        static_count: int,
        known: passes.KnownValues | None,
        is_unchanged: Callable[[], bool],
    ) -> CachedPlan:
        start_ns = time.perf_counter_ns()
        reject_own_rules(arguments.tensors)
        dedupe, output, reads = Dedupe.of(arguments.tensors), FlatOutput(), Reads()
        structure, parameters = (
            arguments.without_tensors(),
            [t if is_parameter(t) else None for t in dedupe.enter(arguments.tensors)],
        )

        def run_flat(*distinct: torch.Tensor) -> list[Any]:
            torch_compat.mark_parameters(distinct, parameters)
            args, kwargs = structure.rebuild(dedupe.exit(distinct))
            before = Arguments.of(args, kwargs)
            with reads.of(distinct):
                result = function(*args, **kwargs)
            check_containers(before, Arguments.of(args, kwargs))
            return output.flatten(result)

        tensors = dedupe.enter(arguments.tensors)
        hints = dedupe.enter(self.hints(key, arguments.tensors, static_count))
        known, earlier = known and known.at(dedupe.positions), self.earlier(key, dedupe)
        executable = self.answered(key, run_flat, tensors, hints, known, earlier, is_unchanged)
        reads.check(tensors)
        if self.check is not None:
            self.check(executable)
        guards = make_guards(executable, dedupe, tensors, reads)
        return CachedPlan(executable, guards, output, time.perf_counter_ns() - start_ns)

    def answered(
        self,
        key: tuple,
        function: Callable,
        tensors: Sequence[torch.Tensor],
        hints: Sequence[InputHint],
        known: passes.KnownValues | None,
        earlier: Sequence[Executable],
        is_unchanged: Callable[[], bool],
    ) -> Executable | SmallGraph:
        """Compile; if that fails, and the function has asked about values, once more with answers for this call.

        Answers for values of which a first plan needed some are given at once. A function that has changed what its plan
        depends on is not traced again: it would change that twice.
        """
        if not self.recipe.answers_values:
            return self.executable(function, tensors, hints, known, earlier, None)
        guards = [plan.guards.values for plan in self.entries.get(key, ())]
        first = max((guard.level for guard in guards if guard is not None), default=Level.NOTHING)
        for level in Level:
            if level < first:
                continue
            values = ValueReads(level, tensors)
            try:
                return self.executable(function, tensors, hints, known, earlier, values)
            except Exception as error:
                if level is max(Level) or not values.asked or not is_unchanged():
                    raise
                log.info("%s: traced again with %s, after %s: %s", self.name, level, type(error).__name__, error)
                forget_frames(error)
        raise AssertionError("the last level returns or raises")

    def executable(
        self,
        function: Callable,
        tensors: Sequence[torch.Tensor],
        hints: Sequence[InputHint],
        known: passes.KnownValues | None,
        earlier: Sequence[Executable],
        values: ValueReads | None,
    ) -> Executable | SmallGraph:
        """Compile with symbolic sizes, or with static ones where torch has no shape function for an op of the function."""
        try:
            return self.recipe.compile(function, tensors, hints, known, earlier, values)
        except Exception as error:
            if not (torch_compat.lacks_shape_function(error) and any(hint.dynamic_dims for hint in hints)):
                raise
            log.info("%s: its sizes are static, since one of its ops has no shape function: %s", self.name, error)
        static = [InputHint(hint.static) for hint in hints]
        return self.recipe.compile(function, tensors, static, known, earlier, values)

    def earlier(self, key: tuple, dedupe: Dedupe) -> list[Executable]:
        """The executables of plans that differ from a new one in its tensors only, those that save most first."""
        guarded = [(plan.executable, plan.guards) for plan in self.entries.get(key, ())]
        alike = [made for made, guards in guarded if guards.dedupe == dedupe and guards.global_state.check()]
        found = [made for made in alike if isinstance(made, Executable)]
        return sorted(found, key=lambda executable: len(executable.partition.saved), reverse=True)

    # -- which sizes are symbolic

    def hints(self, key: tuple, tensors: Sequence[torch.Tensor], static_count: int) -> list[InputHint]:
        earlier = [plan for plan in self.entries.get(key, ()) if len(plan.guards.dedupe.positions) == len(tensors)]
        return [self.hint(k, tensor, k < static_count, earlier) for k, tensor in enumerate(tensors)]

    def hint(self, position: int, tensor: torch.Tensor, static: bool, earlier: Sequence[CachedPlan]) -> InputHint:
        """`dynamic=True`: every size of what is no parameter; `None`: sizes that differ from an earlier plan's."""
        if tensor.is_conj() or tensor.is_neg():
            return InputHint(static, frozenset())  # torch makes symbolic fakes of these with other strides
        dims = torch_compat.dims_marked_dynamic(tensor)
        if self.recipe.options.dynamic and not static:
            dims = frozenset(range(tensor.dim()))
        elif self.recipe.options.dynamic is None and not static:
            seen = [traced_fake(plan, position) for plan in earlier]
            dims |= {d for d in range(tensor.dim()) for fake in seen if differs(fake, tensor, d)}
        return InputHint(static, dims)

    # -- what the user is told

    def explain_miss(self, key: tuple, tensors: Sequence[torch.Tensor]) -> None:
        if log.isEnabledFor(logging.INFO):
            log.info("%s: no plan fits: %s", self.name, self.reason(key, tensors))

    def reason(self, key: tuple, tensors: Sequence[torch.Tensor]) -> str:
        entry = self.entries.get(key, ())
        if not self.entries:
            return "there is none yet"
        if not entry:
            return "other Python values, or another structure of arguments or module state"
        return "; ".join(plan.guards.why_not(tensors) for plan in entry)

    def warn_once(self, key: tuple, tensors: Sequence[torch.Tensor]) -> None:
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"{self.name} has {len(self.plans())} plans, the limit (option plan_limit); calls that none of them fits "
                f"run eagerly. What keeps changing: {self.reason(key, tensors)}",
                stacklevel=2,
            )


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


def traced_fake(plan: CachedPlan, position: int) -> torch.Tensor:
    convention = plan.executable.capture.convention
    return convention.inputs[convention.order[plan.guards.dedupe.positions[position]]].fake


def differs(fake: torch.Tensor, tensor: torch.Tensor, dim: int) -> bool:
    """Whether a size is another one than traced, or was symbolic already."""
    if fake.dim() != tensor.dim():
        return False
    size = fake.size(dim)
    return not isinstance(size, int) or size != tensor.size(dim)


def make_guards(executable: Stages, dedupe: Dedupe, tensors: Sequence[torch.Tensor], reads: Reads) -> PlanGuards:
    """The guards of a plan that was just traced for `tensors`."""
    fakes = [spec.fake for spec, _ in executable.arguments]
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
    kinds = ("is a leaf", "is a view", "is a hooked view", "is a view of a leaf", "is forbidden after a write")
    return {*((kind, k) for kind in kinds for k in leaves), *(("storage offset", k) for k in offsets)}


def uses_geometry(step: Any) -> bool:
    """Whether a step lays a tensor out by absolute size, stride and offset."""
    if isinstance(step, UpdateGeometry):
        return True
    as_strided = torch.ops.aten.as_strided.default
    return isinstance(step, MakeView) and any(view.op is as_strided for view in step.replay.steps)
