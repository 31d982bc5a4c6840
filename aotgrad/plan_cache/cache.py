"""The plans of one compiled function: found by guards, compiled on a miss, limited in number.

    f = aotgrad.aot_function(fn, aotgrad.nop)
    f(torch.ones(2)); f(torch.ones(3))
    [plan.hits for plan in f.plans()]          [0, 0]: two plans
    aotgrad.clear_cache(f)

A hit takes no lock. Threads that miss at the same time compile once. A call inside another trace is inlined.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch

from aotgrad import torch_compat
from aotgrad.capture.trace import OwnGeneratorError
from aotgrad.errors import CaptureError, EagerError
from aotgrad.guards.plan import Admission
from aotgrad.passes.registry import generation_of_passes
from aotgrad.pipeline import Compiler, SmallGraph, Traced
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.call import Call
from aotgrad.plan_cache.compile import TracedOnce, compile_plan, with_own_graphs
from aotgrad.plan_cache.eager_fallback import ran_eagerly
from aotgrad.plan_cache.entry import CachedPlan, FastPath, NoPlan, NotCompiled
from aotgrad.plan_cache.generators import Drawing, GeneratorArguments, generators_of, set_states
from aotgrad.plan_cache.key_differences import Difference, key_differences
from aotgrad.plan_cache.lock import COMPILING
from aotgrad.plan_cache.outside_values import undone_if_it_fails
from aotgrad.plan_cache.replayed_call import ReplayedCall, tensors_to_copy
from aotgrad.plan_cache.wrappers import KnownGradientForms, WrapperArguments
from aotgrad.subclasses.boundary import Wrappers
from aotgrad.subclasses.bridge import Detour, OtherGradientForm
from aotgrad.subclasses.forms import has_wrapper
from aotgrad.telemetry.counters import counters
from aotgrad.torch_compat import CompilerSettings

DISABLED = "the option `enabled` is off"
OBSERVED = "a trace, mode or transform watches every op"
TOO_MANY = "the limit of plans is reached"
RAISES = "the function raises while it is traced"
ROUNDED = "a value that the function branches on is so close to the threshold that rounding decides"
FAILS = "it cannot be compiled, and the option `on_error` is 'eager'"

log = logging.getLogger("aotgrad.guards.plan")


class Admitted(NamedTuple):
    """A plan that serves a call, or why there is none, and the values that the plan takes from its guard."""

    plan: CachedPlan | NoPlan
    guarded: Sequence[torch.Tensor] = ()

    @classmethod
    def of(cls, plan: CachedPlan, admission: Admission) -> Admitted:
        """What the guards of a plan have found. A compiled guard may round a value in another way than the trace did."""
        if not admission:
            return cls(NoPlan(ROUNDED))
        return cls(plan, () if admission is True else admission)


class Planned(NamedTuple):
    """What was found for a call, and the call: with the states of generators, if there are some."""

    plan: CachedPlan | NoPlan
    guarded: Sequence[torch.Tensor]
    call: Call


@dataclass
class PlanCache:
    """The plans of one function.

    Attributes:
        compiler: makes the plans.
        name: what logs and warnings call the function.
        entries: the plans, by the key of their calls; guards tell those with the same key apart.
        plain: the plans with a fast path, by the number of tensors.
        fallbacks: how many calls ran eagerly, by reason.
        generators: those that the function has closed over and draws from.
        gradient_forms: the forms of gradients of tensor subclasses that differ from those of their tensors.
        warned: whether the limit of plans was reported.
        failed: calls that could not be compiled, see `failure_key`.
        settings: those of the last thread of the program's own that made a plan.
    """

    compiler: Compiler
    name: str
    entries: dict[tuple, list[CachedPlan]] = field(default_factory=dict)
    plain: dict[int, tuple[FastPath, ...]] = field(default_factory=dict)
    fallbacks: Counter[str] = field(default_factory=Counter)
    generators: list[torch.Generator] = field(default_factory=list)
    gradient_forms: KnownGradientForms = field(default_factory=KnownGradientForms)
    warned: bool = False
    failed: set[tuple] = field(default_factory=set)
    settings: CompilerSettings = field(default_factory=CompilerSettings.now)

    def plans(self) -> list[CachedPlan]:
        return [plan for entry in list(self.entries.values()) for plan in entry]

    @property
    def unread(self) -> int:
        """How many plans a file has that no call has needed."""
        return 0

    def clear(self) -> None:
        with COMPILING:
            self.entries.clear()
            self.plain.clear()
            self.generators.clear()
            self.failed.clear()
            self.warned = False

    def runs_eagerly(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a call skips the plans; counted by reason."""
        reason = self.why_eagerly(tensors)
        if reason is None:
            return False
        self.fallbacks[reason] += 1
        return True

    def why_eagerly(self, tensors: Sequence[torch.Tensor]) -> str | None:
        """Why a call skips the plans: by an option, or because a trace, mode or transform observes every op."""
        if not self.compiler.options.enabled:
            return DISABLED
        return OBSERVED if torch_compat.ops_are_observed(tensors) else None

    def fast_path(self, values: Sequence[Any], state: Hashable) -> FastPath | None:
        """The fast path that serves a call with these values in this state, if one does."""
        for path in self.plain.get(len(values), ()):
            if (path.state is state or path.state == state) and path.admits(values):
                return path
        return None

    def plan_for(self, call: Call, counts: bool = True) -> Planned:
        """The plan of a call, made if there is none, or the reason why there is none; `run` takes what is returned.

        Args:
            counts: whether a plan that is found counts as used.

        Raises:
            CaptureError: the function makes a generator and draws from it.
        """
        added = None
        while True:
            with_states = self.with_parts(self.with_states(call))
            key = with_states.current_key()
            found = self.find(key, with_states.tensors)
            if found is not None:
                if counts and isinstance(found.plan, CachedPlan):
                    found.plan.hits += 1
                    counters["hits"] += 1
                return Planned(*found, with_states)
            try:
                return Planned(*self.make(with_states._replace(key=key)), with_states)
            except OtherGradientForm as error:
                self.gradient_forms.learn_from(with_states, error)
            except WrongGuess:
                pass
            except OwnGeneratorError as error:
                if added is not None and torch_compat.generator_key(added) not in error.drawn:
                    self.generators.remove(added)  # the function made it, and has made another one now
                    raise CaptureError(str(error)) from None
                added = error.generator
                self.generators.append(added)

    def run(self, planned: Planned) -> Any:
        """Run the plan of a call, or the function itself."""
        plan, guarded, call = planned
        if isinstance(plan, NoPlan):
            return self.run_eagerly(plan, call)
        arguments = call.arguments.inner if isinstance(call.arguments, WrapperArguments) else call.arguments
        detour = self.detour_of_plan(plan, call, arguments) if plan.output.has_wrappers else None
        result = plan(call, detour, guarded)
        if not isinstance(arguments, GeneratorArguments) or isinstance(plan.executable, SmallGraph):
            return result
        result, states = result
        set_states(arguments.generators, states)
        return result

    def detour_of_plan(self, plan: CachedPlan, call: Call, whole: Arguments) -> Detour | None:
        """The detour of a call that the plan serves; `whole` are its arguments with the wrappers."""
        origins = range(len(call.tensors)) if call.arguments is whole else cast(Any, call.arguments).layout.origins
        places = [origins[k] for k in plan.guards.dedupe.kept]
        changed = tensors_to_copy(cast(Traced, plan.executable), plan.output.wrappers, whole.tensors, places)
        whole_call = call._replace(arguments=whole, settings=plan.settings)
        return self.detour_of(whole_call, cast(Traced, plan.executable), plan.output.wrappers, changed)

    def detour_of(self, call: Call, stages: Traced, wrappers: Wrappers, changed: Sequence[torch.Tensor]) -> Detour | None:
        """How gradients of the results of a call are computed that have other forms than its plan has assumed.

        Args:
            call: with its wrappers whole.
            changed: the arguments to copy before the call changes them.
        """
        tensors = call.arguments.tensors
        positions = [k for k, tensor in enumerate(tensors) if tensor.requires_grad]
        if not (positions and torch.is_grad_enabled()):
            return None
        position_of = {id(tensor): k for k, tensor in enumerate(tensors)} if changed else {}
        copies = {position_of[id(tensor)]: tensor.clone() for tensor in changed}
        random_state = torch_compat.random_state(torch_compat.devices_that_draw()) if stages.draws else None
        replay = ReplayedCall(self, call, tuple(positions), stages, wrappers, copies, random_state)
        return Detour(tuple(copies.get(k, tensors[k]) for k in positions), replay.gradients)

    def run_eagerly(self, missing: NoPlan, call: Call) -> Any:
        """The result of the function. If it raised while it was traced, it raises eager's error, with eager's effects."""
        counters["fallbacks"] += 1
        self.fallbacks[missing.reason] += 1
        result = call.run_eagerly()
        if missing.error is not None:
            warnings.warn(
                f"{self.name} ran eagerly: it raises {type(missing.error).__name__} while it is traced, though not when it "
                f"runs: {missing.error}",
                stacklevel=3,
            )
        return result

    def with_states(self, call: Call) -> Call:
        """The call with the states of generators that it may draw from as further arguments, if there are some."""
        if not self.draws_from_generators(call.arguments):
            return call
        arguments = GeneratorArguments.of_call(call.arguments, self.generators)
        return call._replace(function=Drawing(call.function), arguments=arguments)

    def with_parts(self, call: Call) -> Call:
        """The call with the parts of wrapper subclasses as arguments in their place, if there are some."""
        if not (self.gradient_forms.known or has_wrapper(call.tensors)):
            return call
        arguments = WrapperArguments.of_call(call.arguments, self.gradient_forms.of(call))
        return call._replace(arguments=arguments, static_count=arguments.count_of(call.static_count))

    def draws_from_generators(self, arguments: Arguments) -> bool:
        """Whether a call may draw from generators of its own."""
        return bool(self.generators or (arguments.constants and generators_of(arguments)))

    def find(self, key: tuple, tensors: Sequence[torch.Tensor]) -> Admitted | None:
        plans = self.entries.get(key, [])
        for plan in plans:
            if admission := plan.guards.check(tensors):
                if plan is not plans[0] and plan.guards.values is not None:  # which is dear to check: it comes first now
                    self.entries[key] = [plan, *(other for other in plans if other is not plan)]
                return Admitted.of(plan, admission)
        return None

    def make(self, call: Call) -> Admitted:
        """Compile a plan for a call; else the reason why there is none."""
        with COMPILING:
            found = self.find(call.key, call.tensors)
            if found is not None:
                return found
            if (reason := self.why_not_compiled(call)) is not None:
                return Admitted(NoPlan(reason))
            traced = TracedOnce(call.function)
            try:
                earlier = self.entries.get(call.key, ())
                with self.settings_for(call).active(), undone_if_it_fails():
                    plan = compile_plan(call._replace(function=traced), self.compiler, self.name, earlier)
            except Exception as error:
                return Admitted(self.after_failure(call, error, traced))
            traced.raised = None  # an earlier trace raised it, and its frames hold the arguments
            plan = self.add(plan, call)
            return Admitted.of(plan, not plan.takes_guarded or plan.guards.check(call.tensors))

    def settings_for(self, call: Call) -> CompilerSettings:
        """What a plan of a call is compiled with. A thread of the engine has none of its own: a checkpoint may run there."""
        if call.settings is not None:
            return call.settings
        if not torch_compat.is_engine_thread():
            self.settings = CompilerSettings.now()
        return self.settings

    def why_not_compiled(self, call: Call) -> str | None:
        """Why no plan is compiled for a call that has none."""
        if self.failed and failure_key(call) in self.failed:
            return FAILS
        counters["misses"] += 1
        self.explain_miss(call.key, call.tensors)
        if len(self.plans()) < self.compiler.options.plan_limit:
            return None
        self.warn_once(call.key, call.tensors)
        return TOO_MANY

    def after_failure(self, call: Call, error: Exception, traced: TracedOnce) -> NoPlan:
        """Why a call has no plan after its compilation has raised; raises the error if the call must not run eagerly.

        Raises:
            WrongGuess: the trace has guessed the forms of gradients.
        """
        if error is traced.raised or isinstance(error, EagerError):
            return NoPlan(RAISES, error)
        passes_through = isinstance(error, (OwnGeneratorError, OtherGradientForm, NotCompiled))
        if not passes_through and self.gradient_forms.drop_guesses(call):
            raise WrongGuess from error
        if self.compiler.options.on_error == "raise" or passes_through:
            raise error
        ran_eagerly(self.name, error)
        self.failed.add(failure_key(call))
        return NoPlan(FAILS)

    def add(self, plan: CachedPlan, call: Call) -> CachedPlan:
        """Store a plan that was just made for a call. Returns the plan to run."""
        key = call.key
        if plan.serves_one_call:
            plan, key = with_own_graphs(plan), (object(),)
        elif isinstance(call.arguments.spec, int) and not plan.output.has_wrappers:
            self.add_plain(plan, len(call.tensors), call.state.value)
        counters["value_guards"] += plan.guards.values is not None
        self.entries[key] = [plan, *self.entries.get(key, ())]
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s: a new plan, used if\n%s", self.name, "\n".join(f"    {line}" for line in plan.guards.lines()))
        return plan

    def add_plain(self, plan: CachedPlan, count: int, state: Hashable) -> None:
        calls = FastPath.of(plan, state, generation_of_passes())
        if calls is not None:
            self.plain[count] = (calls, *self.plain.get(count, ()))

    # -- messages

    def explain_miss(self, key: tuple, tensors: Sequence[torch.Tensor]) -> None:
        if log.isEnabledFor(logging.INFO):
            log.info("%s: no plan fits: %s", self.name, self.reason(key, tensors))

    def reason(self, key: tuple, tensors: Sequence[torch.Tensor]) -> str:
        if not self.entries:
            return "there is none yet"
        if entry := self.entries.get(key):
            return "; ".join(plan.guards.why_not(tensors) for plan in entry)
        return "; ".join(map(str, self.differences(key))) or "a function that changes what it reads is retraced"

    def differences(self, key: tuple) -> Iterator[Difference]:
        """What differs from the key of the last plan that has one with the same structure of the arguments."""
        earlier = [other for other in reversed(self.entries) if len(other) == len(key)]
        nearest = next((other for other in earlier if other[0] == key[0]), next(iter(earlier), key))
        return key_differences(key, nearest)

    def warn_once(self, key: tuple, tensors: Sequence[torch.Tensor]) -> None:
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"{self.name} has {len(self.plans())} plans, the limit (option plan_limit); calls that none of them fits "
                f"run eagerly. What keeps changing: {self.reason(key, tensors)}",
                stacklevel=2,
            )


class WrongGuess(Exception):
    """A trace has failed that has guessed the forms of gradients of results from calls of other sizes."""


def failure_key(call: Call) -> tuple:
    """Identifies calls that cannot be compiled. A plan would have had guards, so a call that differs is compiled."""
    tensors = ((t.layout, t.dtype, t.device, t.shape, t.requires_grad) for t in call.tensors)
    return call.key, torch_compat.global_settings(), *tensors
