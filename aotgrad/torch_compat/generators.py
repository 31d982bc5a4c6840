"""Random ops that draw from a given `torch.Generator`, as functions of its state.

    x.normal_(generator=g)      ->      value, state = aotgrad_random::normal_(x, generator=state); x.copy_(value)

Each op with a generator argument gets a twin in the namespace `aotgrad_random` on first use. The twin takes the state, a
tensor of bytes, in place of the generator, and returns the new state as its last result. It writes to nothing. The graph
threads the states from op to op, and only the runtime moves the generator.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from aotgrad.torch_compat.random import default_generators

_NAMESPACE = "aotgrad_random"
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")
_states: contextvars.ContextVar[GeneratorStates | None] = contextvars.ContextVar("_states", default=None)


class OwnGenerator(RuntimeError):
    """A random op draws from a generator whose state is not traced; `drawn` are the keys of the traced ones drawn from."""

    def __init__(self, generator: torch.Generator, drawn: frozenset[int]) -> None:
        super().__init__("a random op draws from a generator of its own")
        self.generator, self.drawn = generator, drawn


def generator_key(generator: torch.Generator) -> int:
    """Equal for two Python objects that wrap the same generator."""
    return generator._cdata


class GeneratorStates:
    """The current traced states of generators; `drawn` are the keys of those drawn from."""

    def __init__(self, generators: Sequence[torch.Generator], states: Sequence[torch.Tensor]) -> None:
        self._generators = tuple(generators)  # kept alive, so that their keys stay unique
        self._states = dict(zip(map(generator_key, generators), states, strict=True))
        self.drawn: frozenset[int] = frozenset()

    def get(self, generator: torch.Generator) -> torch.Tensor | None:
        return self._states.get(generator_key(generator))

    def put(self, generator: torch.Generator, state: torch.Tensor) -> None:
        self._states[generator_key(generator)] = state
        self.drawn |= {generator_key(generator)}

    def now(self) -> list[torch.Tensor]:
        """The current states, in the order of the generators."""
        return list(self._states.values())


@contextlib.contextmanager
def trace_states(states: GeneratorStates) -> Iterator[None]:
    """Inside, a traced function may draw from these generators."""
    token = _states.set(states)
    try:
        yield
    finally:
        _states.reset(token)


def is_default_generator(generator: torch.Generator) -> bool:
    named = (torch.random.default_generator, *torch.cuda.default_generators)  # stand-ins, during a trace
    return generator_key(generator) in map(generator_key, (*default_generators(), *named))


@functools.cache
def _position(op: torch._ops.OpOverload) -> int | None:
    """The position of an op's generator argument."""
    kinds = [str(argument.type) for argument in op._schema.arguments]
    return next((k for k, kind in enumerate(kinds) if "Generator" in kind), None)


def generator_of(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Generator | None:
    """The generator that a call of an op passes, or `None`."""
    position = _position(op)
    if position is None:
        return None
    return args[position] if position < len(args) else kwargs.get(op._schema.arguments[position].name)


def draw_from(generator: torch.Generator, op: Any, args: Any, kwargs: Any, compute: Callable[..., Any]) -> list[Any]:
    """The values that a random op returns or writes when it draws from a generator; `compute` runs the op's twin.

    Raises:
        OwnGenerator: the generator's state is not traced.
    """
    states = _states.get()
    if states is None or (state := states.get(generator)) is None:
        raise OwnGenerator(generator, frozenset() if states is None else states.drawn)
    args, kwargs = with_generator(op, args, kwargs, state)
    *results, state = compute(_twin(op), tuple(args), kwargs)
    states.put(generator, state)
    return results


def with_generator(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], value: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of an op with `value` in place of the generator."""
    position = _position(op)
    assert position is not None, "the op takes a generator"
    if position < len(args):
        return [*args[:position], value, *args[position + 1 :]], dict(kwargs)
    return list(args), {**kwargs, op._schema.arguments[position].name: value}


@functools.cache
def _twin(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The twin of a random op."""
    packet, _, overload = op._schema.name.rpartition("::")[2], None, op._schema.overload_name
    name = f"{packet}_{overload}" if overload else packet
    _library.define(_schema_of_twin(op, name))
    _library.impl(name, functools.partial(_draw, op), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{_NAMESPACE}::{name}", functools.partial(_draw_nothing, op), lib=_library)
    return getattr(getattr(torch.ops, _NAMESPACE), name).default


def _schema_of_twin(op: torch._ops.OpOverload, name: str) -> str:
    """The schema of a twin: it writes to nothing, takes a state for the generator, and returns the new state last."""
    arguments, _, results = str(op._schema).partition("(")[2].rpartition(") -> ")
    arguments, results = (re.sub(r"Tensor\([a-z]!?\)", "Tensor", text) for text in (arguments, results))
    results = results.strip("()")
    return f"{name}({arguments.replace('Generator?', 'Tensor?')}) -> ({results}, Tensor)"


def _copy_written(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict]:
    """The arguments of an op with copies, in the same layout, of those that it writes to."""
    written = {k: each.name for k, each in enumerate(op._schema.arguments) if each.alias_info and each.alias_info.is_write}
    copies = [arg.clone() if k in written else arg for k, arg in enumerate(args)]
    return copies, {name: value.clone() if name in written.values() else value for name, value in kwargs.items()}


def _draw(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    state = generator_of(op, args, kwargs)
    assert isinstance(state, torch.Tensor), "a twin takes a state"
    generator = torch.Generator(_device_of(args, kwargs))
    generator.set_state(state)
    given, named = with_generator(op, *_copy_written(op, args, kwargs), generator)
    result = op(*given, **named)
    return (*(result if isinstance(result, tuple) else (result,)), generator.get_state())


def _draw_nothing(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """The fake kernel of a twin."""
    state: Any = generator_of(op, args, kwargs)
    given, named = with_generator(op, *_copy_written(op, args, kwargs), None)
    named.pop("generator", None)  # without it, an overload is called that takes symbolic sizes
    result = op.overloadpacket(*given, **named)
    return (*(result if isinstance(result, tuple) else (result,)), torch.empty_like(state))


def _device_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device:
    """The device that an op draws on."""
    values = (*args, *kwargs.values())
    given = kwargs.get("device")
    tensors = (value.device for value in values if isinstance(value, torch.Tensor) and value.dtype is not torch.uint8)
    return torch.device(given) if given is not None else next(tensors, torch.device("cpu"))
