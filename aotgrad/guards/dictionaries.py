"""Whether dictionaries are unchanged; each call of a module checks those that hold its attributes.

    watched = watch([module], [module._parameters])      objects with their dictionaries, and other dictionaries
    watched.hold()                                       True
    module.scale = 2.0
    watched.hold()                                       False

A dictionary is unchanged if it has the same keys and values: identical objects in the same order. `Contents` compares all
of them. Up to 3.11, Python counts the changes of each dictionary, and reading the count is much faster; later versions
report changes to registered watchers, and miss some. So `Versions` is used only where Python keeps counts, and only after
they have noticed every change of `CHANGES`. They miss a new order of an `OrderedDict`, which is always compared.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from aotgrad import native, torch_compat


class Watch(Protocol):
    """Remembers objects and dictionaries as they are when it is made."""

    def hold(self) -> bool:
        """Whether each object still has the same dictionary, and each dictionary the same contents."""
        ...


Mechanism = Callable[[Sequence[Any], Sequence[dict]], Watch]


class Contents:
    """Compares all keys and values by identity. Keeps them alive, so that no other object gets their identity."""

    def __init__(self, objects: Sequence[Any], tables: Sequence[dict]) -> None:
        self.objects, self.own = list(objects), [value.__dict__ for value in objects]
        plain, ordered = by_type([*self.own, *tables])
        self.plain = Entries(plain, native.lookup("same_contents", same_contents))
        self.ordered = Entries(ordered, same_contents)

    def hold(self) -> bool:
        return are_identical(map(OWN, self.objects), self.own) and self.plain.hold() and self.ordered.hold()


class Versions:
    """Reads the versions of plain dictionaries. The version of an `OrderedDict` misses its order."""

    def __init__(self, objects: Sequence[Any], tables: Sequence[dict]) -> None:
        plain, ordered = by_type(tables)
        self.plain = torch_compat.DictVersions(objects, plain)
        self.ordered = Entries(ordered, same_contents) if ordered else None

    def hold(self) -> bool:
        return self.plain.hold() and (self.ordered is None or self.ordered.hold())


def by_type(tables: Sequence[dict]) -> tuple[list[dict], list[dict]]:
    """The plain dictionaries, and the others."""
    return [each for each in tables if type(each) is dict], [each for each in tables if type(each) is not dict]


class Entries:
    """The keys and values of dictionaries, which `are_same` compares."""

    def __init__(self, tables: list[dict], are_same: Callable[..., bool]) -> None:
        keys = list(itertools.chain.from_iterable(tables))
        values = list(itertools.chain.from_iterable(map(VALUES, tables)))
        self.known, self.are_same = (tables, list(map(len, tables)), keys, values), are_same

    def hold(self) -> bool:
        return self.are_same(*self.known)


def same_contents(tables: list[dict], lengths: list[int], keys: list[Any], values: list[Any]) -> bool:
    """Whether dictionaries, one after another, have identical keys and values."""
    return (
        list(map(len, tables)) == lengths
        and are_identical(itertools.chain.from_iterable(tables), keys)
        and are_identical(itertools.chain.from_iterable(map(VALUES, tables)), values)
    )


def are_identical(found: Iterable[Any], before: Iterable[Any]) -> bool:
    """Whether two sequences of the same length contain the same objects."""
    return all(map(operator.is_, found, before))


OWN = operator.attrgetter("__dict__")
VALUES = operator.methodcaller("values")


def watch(objects: Sequence[Any], tables: Sequence[dict]) -> Watch:
    """The fastest watch that is reliable with this Python and this torch."""
    return fastest()(objects, tables)


@functools.cache
def fastest() -> Mechanism:
    return Versions if torch_compat.versions_are_counted() and tells_every_change(Versions) else Contents


def tells_every_change(mechanism: Mechanism) -> bool:
    """Whether a mechanism notices each of `CHANGES`, and nothing else."""
    return all(tells(mechanism, change) for change in CHANGES)


def tells(mechanism: Mechanism, change: Callable[[Example], Any]) -> bool:
    for _ in range(WARM):
        change(Example())  # Python specializes code that runs often
    example = Example()
    watched = mechanism([example], [example.table, example.filled, example.ordered])
    if not (watched.hold() and watched.hold()):
        return False
    change(example)
    return not watched.hold() and not watched.hold()


WARM = 20
"""After this many runs, Python has specialized a function."""


class Example:
    """Something to change."""

    def __init__(self) -> None:
        self.number, self.other = 1.0, 2.0
        self.table: dict = {}
        self.filled = {"a": 1.0, "b": 2.0}
        self.ordered = OrderedDict(self.filled)


def assign(example: Example) -> None:
    example.number = 3.0


def assign_another_type(example: Example) -> None:
    example.number = True


def add(example: Any) -> None:
    example.new = 1.0


def delete(example: Example) -> None:
    del example.other


def replace_all(example: Example) -> None:
    example.__dict__ = dict(example.__dict__)


CHANGES: tuple[Callable[[Example], Any], ...] = (
    assign,
    assign_another_type,
    add,
    delete,
    replace_all,
    lambda example: object.__setattr__(example, "number", 3.0),
    lambda example: vars(example).update(number=3.0),
    lambda example: vars(example).pop("number"),
    lambda example: vars(example).clear(),
    lambda example: example.table.update(a=1.0),
    lambda example: example.table.update([("a", 1.0)]),
    lambda example: example.table.setdefault("a", 1.0),
    lambda example: example.table.__setitem__("a", 1.0),
    lambda example: example.table.__ior__({"a": 1.0}),
    lambda example: example.filled.update(a=3.0),
    lambda example: example.filled.__setitem__("b", 3.0),
    lambda example: example.filled.setdefault("c", 3.0),
    lambda example: example.filled.__delitem__("a"),
    lambda example: example.filled.pop("a"),
    lambda example: example.filled.popitem(),
    lambda example: example.filled.clear(),
    lambda example: example.filled.__setitem__("a", example.filled.pop("a")),
    lambda example: example.filled.__setitem__("c", example.filled.pop("b")),
    lambda example: example.ordered.update(a=3.0),
    lambda example: example.ordered.popitem(last=False),
    lambda example: example.ordered.clear(),
    lambda example: example.ordered.move_to_end("a"),
)
"""How a program changes a dictionary, or the attributes of an object."""
