"""The plans of one compiled function: found by guards, made on a miss, limited in number.

    f = aotgrad.aot_function(fn, aotgrad.nop)
    f(torch.ones(2)); f(torch.ones(3))
    [plan.hits for plan in f.plans()]          [0, 0]: two plans
    aotgrad.clear_cache(f)

A hit takes no lock. Threads that miss at once compile once. A function that is called inside another trace is inlined.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from aotgrad import passes, torch_compat
from aotgrad.capture.trace import OwnGeneratorError
from aotgrad.errors import CaptureError, EagerError
from aotgrad.pipeline import Compiler, SmallGraph
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.compile import Request, TracedOnce, key_of, make_plan, reject_second_run
from aotgrad.plan_cache.entry import AmbientState, CachedPlan, FastPath, NoPlan, Stages
from aotgrad.plan_cache.generators import Drawing, GeneratorArguments, generators_of, set_states
from aotgrad.plan_cache.lock import COMPILING
from aotgrad.plan_cache.on_error import ran_eagerly
from aotgrad.telemetry.counters import counters

DISABLED = "the option `enabled` is off"
OBSERVED = "a trace, mode or transform watches every op"
TOO_MANY = "the limit of plans is reached"
RAISES = "the function raises while it is traced"
FAILS = "it cannot be compiled, and the option `on_error` is 'eager'"

log = logging.getLogger("aotgrad.guards.plan")


@dataclass
class PlanCache:
    """The plans of one function, by structure and then by guards. `check` may refuse an executable by raising.

    `plain` has the same plans by the number of tensors, as far as they have plain calls. `generators` are those that the
    function has closed over and draws from. `failed` are the calls that could not be
    compiled.
    """

    compiler: Compiler
    name: str
    check: Callable[[Stages], None] | None = None
    entries: dict[tuple, list[CachedPlan]] = field(default_factory=dict)
    plain: dict[int, tuple[FastPath, ...]] = field(default_factory=dict)
    fallbacks: Counter[str] = field(default_factory=Counter)
    generators: list[torch.Generator] = field(default_factory=list)
    warned: bool = False
    failed: set[tuple] = field(default_factory=set)

    def plans(self) -> list[CachedPlan]:
        return [plan for entry in list(self.entries.values()) for plan in entry]

    def clear(self) -> None:
        with COMPILING:
            self.entries.clear()
            self.plain.clear()
            self.generators.clear()
            self.failed.clear()
            self.warned = False

    def runs_eagerly(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether no plan is looked for; counted by reason."""
        reason = self.why_eagerly(tensors)
        if reason is None:
            return False
        self.fallbacks[reason] += 1
        return True

    def why_eagerly(self, tensors: Sequence[torch.Tensor]) -> str | None:
        """Why no plan is looked for: options, or every op of the call matters to someone else."""
        if not self.compiler.options.enabled:
            return DISABLED
        return OBSERVED if torch_compat.ops_are_observed(tensors) else None

    def call(
        self,
        function: Callable,
        arguments: Arguments,
        static_count: int,
        state: AmbientState,
        known: passes.KnownValues | None = None,
    ) -> Any:
        """Run the plan for these arguments, after making it if there is none; see `plan_for`."""
        plan, given = self.plan_of_call(function, arguments, static_count, state, known)
        if isinstance(plan, NoPlan):
            return self.run_eagerly(plan, state, arguments)
        if not isinstance(given, GeneratorArguments) or isinstance(plan.executable, SmallGraph):
            return plan(state, arguments)
        result, states = plan(state, given)
        set_states(given.generators, states)
        return result

    def with_states(self, arguments: Arguments) -> Arguments:
        """The arguments, and the states of generators that the call may draw from, if there are some."""
        if self.draws_from_generators(arguments):
            return GeneratorArguments.of_call(arguments, self.generators)
        return arguments

    def draws_from_generators(self, arguments: Arguments) -> bool:
        """Whether a call may draw from generators of its own."""
        return bool(self.generators or (arguments.constants and generators_of(arguments)))

    def plan_of_call(
        self,
        function: Callable,
        arguments: Arguments,
        static_count: int,
        state: AmbientState,
        known: passes.KnownValues | None = None,
        counts: bool = True,
    ) -> tuple[CachedPlan | NoPlan, Arguments]:
        """What `plan_for` gives, and the arguments of the plan: with the states of generators, if there are some.

        Raises:
            CaptureError: the function makes a generator and draws from it.
        """
        added = None
        while True:
            given = self.with_states(arguments)
            traced = function if given is arguments else Drawing(function)
            try:
                return self.plan_for(traced, given, static_count, state, known, counts), given
            except OwnGeneratorError as error:
                if added is not None and torch_compat.generator_key(added) not in error.drawn:
                    self.generators.remove(added)  # it was made inside, as is another one now
                    raise CaptureError(str(error)) from None
                added = error.generator
                self.generators.append(added)

    def plan_for(
        self,
        function: Callable,
        arguments: Arguments,
        static_count: int,
        state: AmbientState,
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
        key = key_of(arguments, state.value)
        plan = self.find(key, arguments.tensors)
        if plan is None:
            return self.make(Request(key, function, arguments, static_count, state, known))
        if counts:
            plan.hits += 1
            counters["hits"] += 1
        return plan

    def run_eagerly(self, missing: NoPlan, state: AmbientState, arguments: Arguments) -> Any:
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

    def make(self, request: Request) -> CachedPlan | NoPlan:
        """Compile a plan, or say why there is none."""
        key, tensors = request.key, request.tensors
        with COMPILING:
            plan = self.find(key, tensors)
            if plan is not None:
                return plan
            if self.failed and described(request) in self.failed:
                return NoPlan(FAILS)
            counters["misses"] += 1
            self.explain_miss(key, tensors)
            if len(self.plans()) >= self.compiler.options.plan_limit:
                self.warn_once(key, tensors)
                return NoPlan(TOO_MANY)
            traced = TracedOnce(request.function)
            try:
                earlier = self.entries.get(key, ())
                plan = make_plan(replace(request, function=traced), self.compiler, self.name, earlier, self.check)
            except Exception as error:
                if error is traced.raised or isinstance(error, EagerError):
                    return NoPlan(RAISES, error)
                if self.compiler.options.on_error == "raise" or isinstance(error, OwnGeneratorError):
                    raise
                ran_eagerly(self.name, error)
                self.failed.add(described(request))
                return NoPlan(FAILS)
            self.add(plan, request)
            return plan

    def add(self, plan: CachedPlan, request: Request) -> None:
        """Let later calls find a plan that was just made for a request."""
        key = request.key
        if not request.is_unchanged():
            reject_second_run(plan)
            key = (object(),)  # the function changes what the plan depends on: each call has to change it again
        elif isinstance(request.arguments.spec, int):
            self.add_plain(plan, len(request.tensors), request.state.value)
        counters["value_guards"] += plan.guards.values is not None
        self.entries[key] = [plan, *self.entries.get(key, ())]
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s: a new plan, used if\n%s", self.name, "\n".join(f"    {line}" for line in plan.guards.lines()))

    def add_plain(self, plan: CachedPlan, count: int, state: Hashable) -> None:
        calls = FastPath.of(plan, state, passes.generation())
        if calls is not None:
            self.plain[count] = (calls, *self.plain.get(count, ()))

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


def described(request: Request) -> tuple:
    """What a call was that could not be compiled: its plan would have had guards, so a call that differs is tried."""
    tensors = ((t.layout, t.dtype, t.device, t.shape, t.requires_grad) for t in request.tensors)
    return request.key, torch_compat.global_settings(), *tensors
