"""Where captured values are: places that hold one value each, and containers that count as a whole.

place = attribute_place(config, "scale")
place.get(), place.put(3.0)                     NOTHING stands for a place that does not exist
items = captured_items(scales)                  also AllAttributes(config)
restore_items(scales, items)
"""

from __future__ import annotations

import collections
import itertools
import operator
import threading
import types
from collections.abc import Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

NOTHING = object()
"""What a place holds that does not exist."""

WITH_ITEMS = (list, dict, tuple, set, frozenset, collections.deque)
"""The containers whose items are found without the code of a library."""


@dataclass(frozen=True)
class DictionaryPlace:
    """A place in a dictionary: of a global, or of an attribute of an object."""

    table: dict[str, Any]
    name: str

    def get(self) -> Any:
        return self.table.get(self.name, NOTHING)

    def put(self, value: Any) -> None:
        if value is NOTHING:
            self.table.pop(self.name, None)
        else:
            self.table[self.name] = value


@dataclass(frozen=True)
class AttributePlace:
    """The place of an attribute of a class, or of a `threading.local`, which has a dictionary for each thread."""

    holder: Any
    name: str

    def get(self) -> Any:
        return vars(self.holder).get(self.name, NOTHING)

    def put(self, value: Any) -> None:
        if value is NOTHING:
            delattr(self.holder, self.name)
        else:
            setattr(self.holder, self.name, value)


def attribute_place(holder: Any, name: str) -> AttributePlace | DictionaryPlace:
    has_one_dictionary = not isinstance(holder, (type, threading.local))
    return DictionaryPlace(vars(holder), name) if has_one_dictionary else AttributePlace(holder, name)


@dataclass(frozen=True)
class CellPlace:
    """The place of a variable that a function shares with the function around it."""

    cell: types.CellType
    name: str

    def get(self) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return NOTHING

    def put(self, value: Any) -> None:
        self.cell.cell_contents = value


@dataclass(frozen=True)
class ContextPlace:
    """The place of the value of a `ContextVar`."""

    variable: ContextVar[Any]

    @property
    def name(self) -> str:
        return self.variable.name

    def get(self) -> Any:
        return self.variable.get(NOTHING)

    def put(self, value: Any) -> None:
        self.variable.set(value)


CapturedPlace = DictionaryPlace | AttributePlace | CellPlace | ContextPlace


@dataclass(frozen=True)
class AllAttributes:
    """All attributes of an object as a container. `holder`: the object; a class; a module, for its variables."""

    holder: Any

    def items(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in vars(self.holder).items() if not is_special(name)]

    def __setitem__(self, name: str, value: Any) -> None:
        attribute_place(self.holder, name).put(value)

    def __delitem__(self, name: str) -> None:
        attribute_place(self.holder, name).put(NOTHING)


def captured_items(container: Any) -> list[Any]:
    """The values in a container; those with a key, each after its key. Another thread may change it meanwhile."""
    has_keys = isinstance(container, (Mapping, AllAttributes))
    items = list(container.items() if has_keys else container)
    return list(itertools.chain.from_iterable(items)) if has_keys else items


def are_same_items(container: Any, items: Sequence[Any]) -> bool:
    found = captured_items(container)
    return len(found) == len(items) and all(map(operator.is_, found, items))


def restore_items(container: Any, items: Sequence[Any]) -> None:
    """Let a container hold what it held, in this order, unless it only shows what others hold."""
    if isinstance(container, (MutableMapping, AllAttributes)):
        now, before = dict(container.items()), dict(zip(items[::2], items[1::2], strict=True))
        for key in now.keys() - before.keys():
            del container[key]
        for key, value in before.items():
            if now.get(key, NOTHING) is not value:
                container[key] = value
        if isinstance(container, dict) and list(container) != list(before):
            container.clear()
            container.update(before)
    elif not isinstance(container, Mapping):
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(items)


def is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
