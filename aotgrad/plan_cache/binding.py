"""Calls of functions and modules, taken apart for a `PlanCache`.

In: a function or module and a `PlanCache`. Out: a `BoundFunction`, which finds or compiles the plan of a call.

    bind(model, cache).plan_for(x)         the plan that model(x) would run
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import nn

from aotgrad import torch_compat
from aotgrad.plan_cache.arguments import Arguments, is_size
from aotgrad.plan_cache.cache import PlanCache, Planned
from aotgrad.plan_cache.call import AmbientState, Call
from aotgrad.plan_cache.entry import CachedPlan, NoPlan
from aotgrad.plan_cache.function_state import FunctionState
from aotgrad.plan_cache.module_state import LiftedModule, ModuleArguments, code_of_state
from aotgrad.plan_cache.wrappers import WrapperArguments


class NamedTensor(NamedTuple):
    """The user's name of a tensor, and its kind: `"parameter"`, `"buffer"` or `"argument"`."""

    name: str
    kind: str


@dataclass(frozen=True)
class BoundFunction:
    """The calls of one function or module, with its plans."""

    cache: PlanCache

    def call_of(self, args: tuple, kwargs: dict[str, Any]) -> Call:
        """Take the arguments of a call apart."""
        raise NotImplementedError

    def named_tensors(self, args: tuple, kwargs: dict[str, Any]) -> list[NamedTensor]:
        """The name of each tensor of a call: a module's own tensors first, the states of generators last."""
        call = self.call_of(args, kwargs)
        with_states = self.cache.with_states(call)
        states = (f"state of generator {k}" for k in range(len(with_states.tensors) - len(call.tensors)))
        named = [*self.named_arguments(args, kwargs), *(NamedTensor(name, "argument") for name in states)]
        arguments = self.cache.with_parts(with_states).arguments
        if not isinstance(arguments, WrapperArguments):
            return named
        return [NamedTensor(name, named[k].kind) for name, k in arguments.part_names([name for name, _ in named])]

    def named_arguments(self, args: tuple, kwargs: dict[str, Any]) -> list[NamedTensor]:
        """The name of each tensor of a call, without states."""
        raise NotImplementedError

    def captures(self, state: Any) -> bool:
        """Whether plans for a state of calls are plans for what the code of the function captures now."""
        raise NotImplementedError

    def plan_for(self, *args: Any, **kwargs: Any) -> CachedPlan | NoPlan:
        """The plan that a call would run, compiled on a miss; the plan does not run, and no hit is counted."""
        call = self.call_of(args, kwargs)
        if reason := self.cache.why_eagerly(call.tensors):
            return NoPlan(reason)
        return self.planned(call, counts=False).plan

    def planned(self, call: Call, counts: bool) -> Planned:
        """The plan of a call; `counts`: whether it counts as used."""
        return self.cache.plan_for(call, counts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan for these arguments, or the function itself where there can be none."""
        return self.cache.run(self.cache.plan_for(self.call_of(args, kwargs)))


@dataclass(frozen=True)
class PlainFunction(BoundFunction):
    """Calls of a function; `state` is what they depend on besides their arguments."""

    function: Callable
    state: FunctionState
    static_count: int = 0

    @classmethod
    def of(cls, cache: PlanCache, function: Callable, static_count: int = 0) -> PlainFunction:
        return cls(cache, function, FunctionState((function,)), static_count)

    def call_of(self, args: tuple, kwargs: dict[str, Any]) -> Call:
        return self.call_with(Arguments.of(args, kwargs))

    def call_with(self, arguments: Arguments) -> Call:
        return Call(self.function, arguments, self.static_count, self.ambient_state())

    def ambient_state(self) -> AmbientState:
        return AmbientState(self.function, self.state.read(), self.state.read)

    def captures(self, state: Any) -> bool:
        return state == self.state.read()

    def named_arguments(self, args: tuple, kwargs: dict[str, Any]) -> list[NamedTensor]:
        tensors = Arguments.of(args, kwargs).tensors
        own = [kind_of(tensor) for tensor in tensors[: self.static_count]]
        kinds = [*own, *("argument" for _ in tensors[self.static_count :])]
        return list(map(NamedTensor, tensor_names(self.function, args, kwargs), kinds))


@dataclass(frozen=True)
class BoundModule(BoundFunction):
    """Calls of a module; its own tensors are the first arguments of the traced function."""

    module: nn.Module
    lifted: LiftedModule

    def call_of(self, args: tuple, kwargs: dict[str, Any]) -> Call:
        arguments, state = module_call(self.lifted, self.eager, args, kwargs)
        lifted = self.lifted
        return Call(lifted.forward, arguments, arguments.count, state, assigned=lifted.moving, paths=lifted.paths)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.lifted.finish(super().__call__(*args, **kwargs))

    def captures(self, state: Any) -> bool:
        return code_of_state(state) == code_of_state(self.lifted.read()[1])

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.module).forward(self.module, *args, **kwargs)

    def named_arguments(self, args: tuple, kwargs: dict[str, Any]) -> list[NamedTensor]:
        own = [NamedTensor(slot.name, kind_of(slot.table[slot.key])) for slot in self.lifted.places.slots]
        return own + [NamedTensor(name, "argument") for name in tensor_names(self.module.forward, args, kwargs)]


def bind(function: Callable, cache: PlanCache) -> BoundFunction:
    """The calls of a function or module; of a result of `torch.compile`, the calls of the original."""
    function = torch_compat.uncompiled_function(function)
    if isinstance(function, nn.Module):
        return BoundModule(cache, function, LiftedModule(function, owns_attributes=True))
    return PlainFunction.of(cache, function)


def module_call(
    lifted: LiftedModule, eager: Callable, args: tuple, kwargs: dict[str, Any]
) -> tuple[ModuleArguments, AmbientState]:
    """The flat arguments of one call of a module, and its state."""
    tensors, state = lifted.read_state()
    reread = functools.partial(lifted.value_with, state.names)  # a trace may find more names
    return ModuleArguments.after(tensors, args, kwargs), AmbientState(eager, state.value, reread)


def kind_of(tensor: torch.Tensor) -> str:
    return "parameter" if isinstance(tensor, nn.Parameter) else "buffer"


# --- Names of arguments ----------------------------------------------------------------------------------------------


def tensor_names(function: Callable, args: tuple, kwargs: dict[str, Any]) -> list[str]:
    """A name for each tensor among the arguments, in their order.

    >>> x = torch.ones(1)
    >>> tensor_names(lambda a, *more, b: None, (x, [x, 2], x), {"b": {"key": x}})
    ['a', 'more[0][0]', 'more[1]', "b['key']"]
    """
    positional = list(positional_names(function, len(args)))
    leaves, _ = pytree.tree_flatten_with_path((args, kwargs), is_leaf=is_size)
    return [argument_name(path, positional) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


def positional_names(function: Callable, count: int) -> Iterator[str]:
    """The names of the first `count` positional arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature_of(function)
    named = [parameter.name for parameter in parameters if parameter.kind in kinds][:count]
    rest = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), "args")
    yield from named
    yield from (f"{rest}[{k}]" for k in range(count - len(named)))


def signature_of(function: Callable) -> list[inspect.Parameter]:
    """The parameters of a function; none if it has no signature, as many functions of torch."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def argument_name(path: Sequence[Any], positional: Sequence[str]) -> str:
    """The name of a leaf of `(args, kwargs)`."""
    first = positional[path[1].idx] if path[0].idx == 0 else str(path[1].key)
    return f"{first}{pytree.keystr(tuple(path[2:]))}"
