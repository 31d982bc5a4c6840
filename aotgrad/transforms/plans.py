"""The plans of derived functions: one cache for all functions that are derived from one function.

plans = DerivedPlans(PlanCache(compiler, "transforms of f"))
plans.find(Batch(...), arguments)()          traced and compiled at the first call, then found by key and guards
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aotgrad.passes.known_values import KnownValues
from aotgrad.pipeline import Stages
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.cache import PlanCache, Planned
from aotgrad.plan_cache.call import AmbientState, Call
from aotgrad.plan_cache.entry import CachedPlan, NoPlan, NotCompiled
from aotgrad.plan_cache.generators import GeneratorArguments
from aotgrad.plan_cache.wrappers import WrapperArguments
from aotgrad.torch_compat import CompilerSettings
from aotgrad.transforms.derived import DerivedFunction


class PlannedCall(NamedTuple):
    """A call, and the plan that was found for it."""

    cache: PlanCache
    planned: Planned

    @property
    def plan(self) -> CachedPlan | NoPlan:
        return self.planned.plan

    @property
    def stages(self) -> Stages | None:
        """What was traced; `None` if there is no plan."""
        return None if isinstance(self.plan, NoPlan) else self.plan.executable

    @property
    def settings(self) -> CompilerSettings | None:
        """Those that the plan was compiled with."""
        return None if isinstance(self.plan, NoPlan) else self.plan.settings

    @property
    def has_wrappers(self) -> bool:
        """Whether an argument or result is a tensor subclass that has been taken apart."""
        is_taken_apart = isinstance(self.planned.call.arguments, WrapperArguments)
        return is_taken_apart or (not isinstance(self.plan, NoPlan) and self.plan.output.has_wrappers)

    def __call__(self) -> Any:
        """The result: of the plan, or of the function itself if there is none."""
        return self.cache.run(self.planned)


@dataclass(frozen=True)
class DerivedPlans:
    """The plans of functions that are derived from one function.

    Attributes:
        cache: compiles and finds them.
        checked: whether a function may reject its plan, see `DerivedFunction.check`; one that is only traced may not.
        settings: those to compile with; `None`: those of the thread that calls.
        refused: the keys of functions, or of kinds of calls, that cannot be compiled.
    """

    cache: PlanCache
    checked: bool = True
    settings: CompilerSettings | None = None
    refused: set[Hashable] = field(default_factory=set)

    def find(
        self,
        function: DerivedFunction,
        arguments: Arguments,
        is_unchanged: Callable[[], bool] = lambda: True,
        known: KnownValues | None = None,
        settings: CompilerSettings | None = None,
    ) -> PlannedCall:
        """The call of a function's plan, which is compiled if there is none.

        Args:
            is_unchanged: whether no trace has changed the state that `function.key` contains.
            known: see `Call`.
            settings: in place of the own ones.

        Raises:
            NotCompiled: the function draws from a generator of its own.
        """
        state = self.state_of_call(function, is_unchanged)
        call = Call(function, arguments, 0, state, known, settings=settings or self.settings)
        planned = self.cache.plan_for(call)
        if isinstance(planned.call.arguments, GeneratorArguments):  # transforms do not see the states of generators
            raise NotCompiled
        return PlannedCall(self.cache, planned)

    def call(self, function: DerivedFunction, arguments: Arguments, is_unchanged: Callable[[], bool] = lambda: True) -> Any:
        """The result of a function, which may draw from generators of its own."""
        call = Call(function, arguments, 0, self.state_of_call(function, is_unchanged), settings=self.settings)
        return self.cache.run(self.cache.plan_for(call))

    def state_of_call(self, function: DerivedFunction, is_unchanged: Callable[[], bool]) -> AmbientState:
        key = function.key
        check = function.check if self.checked else None
        return AmbientState(function, key, lambda: key if is_unchanged() else object(), check)

    def clear(self) -> None:
        self.cache.clear()
        self.refused.clear()
