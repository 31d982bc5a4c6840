"""One plan of a compiled function, and the reason where a call has none.

plan = f.plans()[0]
plan.hits                                  how many calls it served after the first
plan.guards                                which calls it is for
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from aotgrad.guards.plan import Admission, PlanGuards
from aotgrad.pipeline import Executable, SmallGraph, Stages, TracedJoint
from aotgrad.plan_cache.arguments import FlatOutput
from aotgrad.plan_cache.call import Call
from aotgrad.plan_cache.wrappers import WrapperArguments
from aotgrad.subclasses.bridge import Detour
from aotgrad.subclasses.passages import running_call
from aotgrad.telemetry.counters import counters
from aotgrad.torch_compat import CompilerSettings

_thread = threading.local()


class NotCompiled(Exception):
    """No plan can compute what a transform makes of this function: it runs op by op.

    Raised before the function runs with real tensors: it runs only once, op by op.
    """


@dataclass(frozen=True)
class NoPlan:
    """Why a call has no plan; `error` is what the function raised while it was traced, if it did."""

    reason: str
    error: Exception | None = None


@dataclass(eq=False)
class CachedPlan:
    """One plan with its guards; `hits` counts calls after the first, `compile_ns` is the time of its compilation.

    `settings`: those that it was compiled with; its derivatives get them, too. `serves_one_call`: its function has changed
    what it depends on, and has to do so in each call.
    """

    executable: Stages
    guards: PlanGuards
    output: FlatOutput
    compile_ns: int
    hits: int = 0
    settings: CompilerSettings = field(default_factory=CompilerSettings.now)
    serves_one_call: bool = False

    def __post_init__(self) -> None:
        self.reference = weakref.ref(self)

    @property
    def takes_guarded(self) -> bool:
        """Whether the plan takes values that its guard has computed."""
        return self.executable.takes_guarded

    def __call__(self, call: Call, detour: Detour | None = None, guarded: Sequence[torch.Tensor] = ()) -> Any:
        """Run the plan, whose guards admit the call.

        Args:
            detour: for results that are tensor subclasses.
            guarded: the values that the plan takes from its guard.
        """
        _thread.last_executed = self.reference
        if isinstance(self.executable, SmallGraph):
            return call.run_eagerly()
        if isinstance(call.arguments, WrapperArguments):
            call.arguments.layout.expect_gradients(self.output.wrappers)
        dedupe, tensors = self.guards.dedupe, list(call.tensors)
        run: Any = self.executable  # a plan that was only traced is never called
        if not dedupe.is_identity:
            tensors = dedupe.enter(tensors)
        tensors += guarded
        if not self.output.has_wrappers:
            return self.output.rebuild(run(tensors))
        objects = call.arguments.objects if isinstance(call.arguments, WrapperArguments) else ()
        with running_call(detour, functools.partial(self.output.wrappers.make_early, objects)):
            return self.output.unflatten(run(tensors), objects)


@dataclass(frozen=True)
class FastPath:
    """The calls of one plan with distinct tensors as their only arguments. They find it before anything else is tried.

    Attributes:
        admits: whether the guards hold for these arguments.
        state: see `AmbientState.value`.
        run: takes the tensors in a list, which it clears.
        executable: what the plan runs.
    """

    admits: Callable[[Sequence[Any]], Admission]
    state: Hashable
    run: Callable[[list], Any]
    executable: Executable

    @classmethod
    def of(cls, plan: CachedPlan, state: Hashable, generation: int) -> FastPath | None:
        """The fast path of a plan; `None` if it has none."""
        admits = plan.guards.plain_check(generation)
        if admits is None or isinstance(plan.executable, (SmallGraph, TracedJoint)) or plan.takes_guarded:
            return None
        call, rebuild, reference = plan.executable.call, plan.output.rebuild, plan.reference

        def run(tensors: list) -> Any:
            plan.hits += 1
            counters["hits"] += 1
            _thread.last_executed = reference
            return rebuild(call(tensors))

        return cls(admits, state, run, plan.executable)


def last_executed() -> CachedPlan | None:
    """The plan that ran last in this thread, while its function is alive."""
    plan = getattr(_thread, "last_executed", None)
    return None if plan is None else plan()
