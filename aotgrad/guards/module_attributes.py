"""What modules hold besides tensors: numbers, texts, containers and objects in attributes, submodules, and hooks.

    before = ModuleAttributes.of([model])       model.count is 0
    model(x)                                    self.count += 1
    list(before.changes())                      'count' of a Model: 1, before 0; with a way back

Parameters and buffers are in other places.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from aotgrad import torch_compat
from aotgrad.guards.captured_places import NOTHING, WITH_ITEMS, DictionaryPlace, captured_items
from aotgrad.guards.captured_values import Captured, CapturedChange, changed_containers, is_of_user
from aotgrad.guards.module_slots import HOOK_FLAGS, HOOKS, SKIPPED
from aotgrad.guards.python_values import is_fixed


@dataclass(frozen=True)
class ModuleAttributes:
    """The attributes of module trees, and of objects in them, when this was made.

    Attributes:
        tables: what the dictionary of each object held.
        containers: those in attributes, and of hooks and submodules, with copies of what they held.
    """

    tables: Sequence[tuple[Any, Mapping[str, Any]]]
    containers: Sequence[tuple[Any, list[Any]]]

    @classmethod
    def of(cls, modules: Iterable[nn.Module]) -> ModuleAttributes:
        tables, containers, left, seen = [], [], list[Any](modules), dict[int, Any]()
        while left:
            value = left.pop()
            if is_fixed(value) or id(value) in seen:
                continue
            seen[id(value)] = value
            if isinstance(value, nn.Module):
                left += [vars(value)[name] for name in (*HOOKS, *HOOK_FLAGS, "_modules")]
            if isinstance(value, WITH_ITEMS):
                containers.append((value, captured_items(value)))
                left += captured_items(value)
            elif has_users_attributes(value):
                tables.append((value, {name: held for name, held in vars(value).items() if name not in SKIPPED}))
                left += tables[-1][1].values()
        return cls(tables, containers)

    def changes(self) -> Iterator[CapturedChange]:
        """The attributes and containers that hold other objects now, but for those that a trace had given its tensors."""
        for value, before in self.tables:
            now = {name: held for name, held in vars(value).items() if name not in SKIPPED}
            for name in dict.fromkeys((*before, *now)):
                place, held = DictionaryPlace(vars(value), name), before.get(name, NOTHING)
                if place.get() is not held and not torch_compat.is_traced(held):
                    undo = functools.partial(place.put, held)
                    yield CapturedChange(f"{name!r} of a {type(value).__name__}", place.get(), held, undo)
        yield from changed_containers(self.containers)


@dataclass(frozen=True)
class CapturedState:
    """What functions capture, and the attributes of captured modules, when this was made."""

    captured: Captured
    attributes: ModuleAttributes

    @classmethod
    def of(cls, captured: Captured) -> CapturedState:
        return cls(captured, ModuleAttributes.of(captured.parts))

    def changes(self) -> Iterator[CapturedChange]:
        yield from self.attributes.changes()
        yield from self.captured.changes()

    def undo(self) -> None:
        """Let everything be what it was."""
        for change in list(self.changes()):
            change.undo()


def has_users_attributes(value: Any) -> bool:
    """Whether the attributes of an object are the user's. Objects of libraries may be shared with other threads."""
    return (isinstance(value, nn.Module) or is_of_user(value)) and isinstance(getattr(value, "__dict__", None), dict)
