"""One call of a function: what is traced, for which arguments, and what else it depends on.

call = Call(function, Arguments.of(args, kwargs), static_count=0, state=AmbientState(function))
call.current_key()          hashable: calls with the same key share plans, as far as guards allow
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from aotgrad.guards.data_dependent import Level
from aotgrad.guards.plan import structure_key
from aotgrad.passes.known_values import KnownValues
from aotgrad.passes.registry import generation_of_passes
from aotgrad.pipeline import Stages
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.torch_compat import CompilerSettings


@dataclass(frozen=True)
class AmbientState:
    """What a call depends on besides its arguments.

    Attributes:
        eager: the function that runs in place of a plan, with the user's arguments.
        value: hashable.
        reread: returns the current `value`; a trace may have changed it.
        check: may refuse the stages of a plan by raising.
    """

    eager: Callable[..., Any]
    value: Hashable = None
    reread: Callable[[], Hashable] = lambda: None
    check: Callable[[Stages], None] | None = None


class Call(NamedTuple):
    """One call, as a `PlanCache` takes it.

    Attributes:
        function: takes the nested arguments; it is what is traced.
        arguments: of this call.
        static_count: how many leading tensors are parameters or buffers.
        state: what else the trace depends on.
        known: tensors that hold values which the function would compute; determined by `state`.
        level: the lowest level at which the trace gets answers about values.
        shares_guarded: whether its plan takes values from its guard, which has computed them.
        serves_one_call: whether its plan will never be used again; asked after the trace.
        assigned: the names of buffers that calls assign, which keep neither memory nor size; asked when a plan is made.
        paths: names the leading tensors, which are parameters and buffers; asked when a plan is made.
        settings: those to compile with; `None`: those of this thread.
        key: the `current_key` before a trace, which may change objects among the constants; empty on a hit.
    """

    function: Callable
    arguments: Arguments
    static_count: int
    state: AmbientState
    known: KnownValues | None = None
    level: Level = Level.NONE
    shares_guarded: bool = False
    serves_one_call: Callable[[], bool] = lambda: False
    assigned: Callable[[], Collection[str]] = frozenset
    paths: Callable[[], Sequence[str]] = list
    settings: CompilerSettings | None = None
    key: tuple = ()

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        return self.arguments.tensors

    def current_key(self) -> tuple:
        """What is known before guards: structure, constants, state, and the generation of the registered passes."""
        return self._key_with(self.state.value)

    def has_changed_its_key(self) -> bool:
        """Whether a trace has changed what the key depends on."""
        return self._key_with(self.state.reread()) != self.key

    def run_eagerly(self) -> Any:
        """The result of the function itself."""
        return self.state.eager(*self.arguments.args, **self.arguments.kwargs)

    def _key_with(self, state: Hashable) -> tuple:
        return structure_key(self.arguments.constants, self.arguments.spec, (state, generation_of_passes()))
