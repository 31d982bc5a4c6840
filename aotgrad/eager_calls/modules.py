"""Modules among the arguments of an eager call: copies of them run, with other parameters and buffers.

    with module_copies([model], tensors, "f") as copies:
        f(copies[model], x)

So no other thread sees a module change. A copy shares all attributes with its module but parameters, buffers and parts. An
attribute that the function assigns is assigned to the module afterwards.
"""

from __future__ import annotations

import contextlib
import contextvars
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad.errors import EagerCallError

REGISTRIES = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that hold its tensors and parts."""

DERIVED = ("_flat_weights", "_flat_weight_refs")
"""Attributes that recurrent layers make of their parameters, whenever these are others."""

_assigns = contextvars.ContextVar("_assigns", default=True)


@contextlib.contextmanager
def without_assignments() -> Iterator[None]:
    """Inside, attributes that functions assign are not assigned to modules."""
    token = _assigns.set(False)
    try:
        yield
    finally:
        _assigns.reset(token)


def modules_among(values: Iterable[Any]) -> list[torch.nn.Module]:
    return [value for value in values if isinstance(value, torch.nn.Module)]


def parts_of_modules(modules: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """The modules and all that are parts of them, each once."""
    return list(dict.fromkeys(part for module in modules for part in module.modules()))


def tensors_of_modules(modules: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    """The parameters and buffers of modules and their parts; those that several parts have, several times."""
    return [tensor for part in parts_of_modules(modules) for tensor in tensors_by_place(part).values()]


def tensors_by_place(module: torch.nn.Module) -> dict[tuple[str, str], torch.Tensor]:
    """The parameters and buffers of a module without its parts, by registry and name."""
    pairs = (((kind, name), value) for kind in REGISTRIES[:2] for name, value in vars(module)[kind].items())
    return {place: value for place, value in pairs if value is not None}


@contextlib.contextmanager
def module_copies(
    modules: Sequence[torch.nn.Module], tensors: Sequence[torch.Tensor], name: str
) -> Iterator[Mapping[torch.nn.Module, torch.nn.Module]]:
    """Inside, a function runs on copies of modules and their parts, with `tensors` in place of those of the modules.

    Raises:
        EagerCallError: the function assigns a parameter, buffer or part.
    """
    parts, rest = parts_of_modules(modules), iter(tensors)
    replaced: dict[int, Any] = {id(part): object.__new__(type(part)) for part in parts}
    states = [{place: next(rest) for place in tensors_by_place(part)} for part in parts]
    for part, state in zip(parts, states, strict=True):
        replaced.update((id(tensor), state[place]) for place, tensor in tensors_by_place(part).items())
    copies = [ModuleCopy.of(part, state, replaced) for part, state in zip(parts, states, strict=True)]
    yield {copy.module: copy.copy for copy in copies}
    for copy in copies:
        copy.reject_assigned_state(name)
    for copy in copies if _assigns.get() else ():
        copy.assign()


@dataclass(frozen=True, eq=False)
class ModuleCopy:
    """A module, its copy, and the attributes of the copy at first.

    `private`: the attributes that the copy has for itself. Those that hold others are kept as tuples of what they hold.
    """

    module: torch.nn.Module
    copy: torch.nn.Module
    attributes: Mapping[str, Any]
    private: Mapping[str, tuple[Any, ...]]

    @classmethod
    def of(
        cls,
        module: torch.nn.Module,
        state: Mapping[tuple[str, str], torch.Tensor],
        replaced: Mapping[int, Any],
    ) -> ModuleCopy:
        copy, own = replaced[id(module)], vars(module)
        attributes = {name: with_replacements(value, replaced) for name, value in own.items() if name not in REGISTRIES}
        for kind in REGISTRIES[:2]:
            attributes[kind] = type(own[kind])((name, state.get((kind, name))) for name in own[kind])
        attributes["_modules"] = type(own["_modules"])((k, replaced.get(id(part))) for k, part in own["_modules"].items())
        vars(copy).update(attributes)
        private = {k: held_in(value) for k, value in attributes.items() if value is not own[k] and k not in DERIVED}
        return cls(module, copy, attributes, private)

    def reject_assigned_state(self, name: str) -> None:
        """Raise if the function has assigned a parameter, buffer or part, or changed a list of them.

        Raises:
            EagerCallError
        """
        now = vars(self.copy)
        for key, held in self.private.items():
            if now.get(key) is not self.attributes[key] or list(map(id, held_in(now[key]))) != list(map(id, held)):
                raise EagerCallError(
                    f"{name}, which is not traced, assigns or deletes a parameter, buffer or part of a "
                    f"{type(self.module).__name__}; change it in place, as by copy_()"
                )

    def assign(self) -> None:
        """Assign to the module what the function has assigned to the copy."""
        now, own = vars(self.copy), vars(self.module)
        for name in self.attributes.keys() - now.keys():
            own.pop(name, None)
        changed = (name for name in now if now[name] is not self.attributes.get(name, now) and name not in DERIVED)
        own.update({name: now[name] for name in changed})


def held_in(value: Any) -> tuple[Any, ...]:
    """What a container holds; of another value, nothing."""
    if isinstance(value, dict):
        return tuple(value.values())
    if isinstance(value, list | tuple):
        return tuple(value)
    return ()


def with_replacements(value: Any, replaced: Mapping[int, Any]) -> Any:
    """An attribute of a module in which others stand for tensors and parts of the module: in a list, say, or a method."""
    if isinstance(value, types.MethodType) and id(value.__self__) in replaced:
        return types.MethodType(value.__func__, replaced[id(value.__self__)])
    if not any(id(each) in replaced for each in held_in(value)):
        return value
    if type(value) is dict:
        return {key: replaced.get(id(each), each) for key, each in value.items()}
    others = [replaced.get(id(each), each) for each in held_in(value)]
    return others if type(value) is list else tuple(others) if type(value) is tuple else value
