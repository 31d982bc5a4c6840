"""Calls of functions that draw from a `torch.Generator`: its state is an argument, and the new state a result.

    f(x, g)     ->      run f on (x, state of g), which returns its result and another state; g.set_state(that)

A trace thus moves no generator, and gradients of gradients, recomputation and other calls draw the right numbers.
Generators are arguments, or closed over: the first trace that draws from a closed-over one finds it. One plan serves all
generators in the same position.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.plan_cache.arguments import Arguments

Generators = Sequence[torch.Generator]


@dataclass(frozen=True)
class GeneratorPosition:
    """Represents a generator among the arguments: generator `index` of the call, or the default one of its device."""

    index: int | None
    device: str


class TracedGenerator(torch.Generator):
    """Replaces a generator while a function is traced, and draws for it where the function runs op by op."""

    def _refuse(self, *args: Any) -> NoReturn:
        reject_generator_state()

    get_state = set_state = manual_seed = seed = initial_seed = _refuse  # type: ignore[assignment]
    clone_state = graphsafe_get_state = graphsafe_set_state = _refuse  # type: ignore[assignment]


def generators_of(arguments: Arguments) -> list[torch.Generator]:
    """The generators among the arguments of a call, with repetitions."""
    return [value for _, value in arguments.constants if isinstance(value, torch.Generator)]


@dataclass(frozen=True)
class GeneratorArguments(Arguments):
    """The arguments of a call, then the states of `generators`; the first `closed` generators are closed over."""

    inner: Arguments
    count: int
    generators: tuple[torch.Generator, ...]
    closed: int

    @classmethod
    def of_call(cls, inner: Arguments, closed: Sequence[torch.Generator]) -> GeneratorArguments:
        own = (each for each in generators_of(inner) if not torch_compat.is_default_generator(each))
        generators = tuple({torch_compat.generator_key(each): each for each in (*closed, *own)}.values())
        constants = tuple((k, position_of(value, generators)) for k, value in inner.constants)
        tensors = (*inner.tensors, *(each.get_state() for each in generators))
        spec = ("generators", len(closed), len(generators), inner.spec)
        return cls(
            inner.args,
            inner.kwargs,
            tensors,
            constants,
            spec,
            inner,
            len(inner.tensors),
            generators,
            len(closed),
            symbolic=inner.symbolic,
        )

    @property
    def fixed_count(self) -> int:
        return len(self.generators)

    def rebuild(self, tensors: Sequence[Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments of `Drawing`."""
        stand_ins = [TracedGenerator(each.device) for each in self.generators]
        args, kwargs = self.inner.rebuild(tensors[: self.count])
        args, kwargs = pytree.tree_map_only(torch.Generator, lambda each: self.stand_in(each, stand_ins), (args, kwargs))
        known = [*self.generators[: self.closed], *stand_ins[self.closed :]]
        return (known, list(tensors[self.count :]), *args), kwargs

    def stand_in(self, generator: torch.Generator, stand_ins: Sequence[torch.Generator]) -> torch.Generator:
        index = position(generator, self.generators)
        return generator if index is None or index < self.closed else stand_ins[index]

    def without_tensors(self) -> GeneratorArguments:
        return replace(self, args=(), kwargs={}, tensors=(), inner=self.inner.without_tensors())


def position(generator: torch.Generator, generators: Sequence[torch.Generator]) -> int | None:
    keys = [torch_compat.generator_key(each) for each in generators]
    key = torch_compat.generator_key(generator)
    return keys.index(key) if key in keys else None


def position_of(value: Any, generators: Sequence[torch.Generator]) -> Any:
    return GeneratorPosition(position(value, generators), str(value.device)) if isinstance(value, torch.Generator) else value


@dataclass(frozen=True)
class Drawing:
    """A function of generators, their states, and arguments. Returns the result of `function` and the new states."""

    function: Callable[..., Any]

    def __call__(
        self, generators: Sequence[torch.Generator], states: Sequence[torch.Tensor], *args: Any, **kwargs: Any
    ) -> Any:
        if not torch_compat.any_functional(states):
            return self.op_by_op(generators, states, args, kwargs)
        traced = torch_compat.GeneratorStates(generators, states)
        with unmoved(generators), torch_compat.trace_states(traced):
            result = self.function(*args, **kwargs)
        return result, traced.now()

    def op_by_op(
        self, generators: Sequence[torch.Generator], states: Sequence[torch.Tensor], args: tuple, kwargs: Any
    ) -> Any:
        """Call the function where ops really draw: from these states. The generators get their own states back."""
        before = states_of(generators)
        try:
            set_states(generators, states)
            return self.function(*args, **kwargs), states_of(generators)
        finally:
            set_states(generators, before)


@contextlib.contextmanager
def unmoved(generators: Generators) -> Iterator[None]:
    """Inside, a function is traced and draws nothing. The generators have random states, to notice assignments.

    Raises:
        CaptureError: at the end, if the function has set a state.
    """
    before = states_of(generators)
    for generator in generators:
        torch.Generator.seed(generator)
    during = states_of(generators)
    try:
        yield
        with torch_compat.bare_evaluation():
            is_moved = not all(map(torch.equal, states_of(generators), during))
    finally:
        set_states(generators, before)
    if is_moved:
        reject_generator_state()


def reject_generator_state() -> NoReturn:
    """Raises CaptureError."""
    raise CaptureError(
        "the function seeds a torch.Generator, or reads or sets its state; do this outside of the compiled function"
    )


def states_of(generators: Sequence[torch.Generator]) -> list[torch.Tensor]:
    with torch_compat.bare_evaluation():
        return [torch.Generator.get_state(each) for each in generators]


def set_states(generators: Sequence[torch.Generator], states: Sequence[torch.Tensor]) -> None:
    with torch_compat.bare_evaluation():
        for generator, state in zip(generators, states, strict=True):
            torch.Generator.set_state(generator, state)
