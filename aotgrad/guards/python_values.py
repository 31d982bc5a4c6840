"""Hashable keys of Python values: equal for values that no trace can tell apart.

    hashable_key(1), hashable_key(1.0), hashable_key(True)       three different ones
    hashable_key(0.0) == hashable_key(-0.0)                      False: 1 / x differs
    hashable_key(float("nan")) == hashable_key(float("nan"))     True

Numbers, strings, enums, containers and objects are compared by content, recursively; functions, classes and Python modules
by identity. Tensors and random generators inside objects are compared by identity too, since a plan reads them at every
call.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch
import torch.fx

PLAIN = frozenset({bool, int, str, bytes, type(None), type(...), range, torch.dtype, torch.device, torch.layout})
BY_IDENTITY = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
BY_IDENTITY += (torch._ops.OpOverload, torch.fx.Graph)
REFERENCES = (torch.Tensor, torch.Generator, weakref.ref)
"""Objects that a plan reads at each call."""


class Identity:
    """The identity of an object: equal to itself while the object lives. Keeps it alive if it allows no weak reference."""

    __slots__ = ("hash", "object")

    def __init__(self, value: Any) -> None:
        self.hash = id(value)
        try:
            self.object: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self.object = lambda: value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and (mine := self.object()) is not None and mine is other.object()

    def __hash__(self) -> int:
        return self.hash


class HashedOnce:
    """A large hashable value with a cached hash; it equals itself by identity."""

    __slots__ = ("hash", "value")

    def __init__(self, value: Hashable) -> None:
        self.value, self.hash = value, hash(value)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, HashedOnce) and self.hash == other.hash and self.value == other.value


KnownKeys = dict[int, tuple[Any, Hashable]]


def hashable_key(value: Any, seen: KnownKeys | None = None) -> Hashable:
    """The key of a value.

    The key of an object with unreadable content (a generator, an open file) equals no other, since it may have changed.

    Args:
        value: anything.
        seen: objects with known keys, by id.

    >>> hashable_key([1, {"a": 2.0}]) == hashable_key([1, {"a": 2.0}]) != hashable_key([True, {"a": 2.0}])
    True
    """
    kind = type(value)
    if kind in PLAIN:
        return (kind, value)
    if isinstance(value, float):
        return (kind, float.hex(value))
    if isinstance(value, enum.Enum):
        return (kind, value.name)
    if isinstance(value, BY_IDENTITY):
        return value
    if isinstance(value, REFERENCES):
        return Identity(value)
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)][1]
    seen[id(value)] = (value, ("seen", len(seen)))
    content = contents(value, seen)
    seen[id(value)] = (value, content)  # with the object, so that its id stays its own
    return content


def is_fixed(value: Any) -> bool:
    """Whether a value has no state that could change."""
    return type(value) in PLAIN or isinstance(value, (float, complex, enum.Enum, *REFERENCES, *BY_IDENTITY))


def contents(value: Any, seen: KnownKeys) -> Hashable:
    """The key of a value with parts."""
    kind = type(value)
    if kind is complex:
        return (kind, value.real.hex(), value.imag.hex())
    if kind in (tuple, list, torch.Size):
        return (kind, *(hashable_key(item, seen) for item in value))
    if kind is dict:
        return (kind, *((hashable_key(key, seen), hashable_key(item, seen)) for key, item in value.items()))
    if kind in (set, frozenset):
        return (kind, frozenset(hashable_key(item, seen) for item in value))
    return (kind, *pickled_parts(value, seen))


def pickled_parts(value: Any, seen: KnownKeys) -> tuple[Hashable, ...]:
    """The keys of what pickling an object would store: its class, its state, its items."""
    try:
        parts = value.__reduce_ex__(2)
    except Exception:  # an object's own __reduce__ may raise anything
        return (object(),)
    if isinstance(parts, str):
        return (Identity(value),)
    return tuple(hashable_key(list(part) if k > 2 and part is not None else part, seen) for k, part in enumerate(parts))


class Plain:
    """The smallest object with a dictionary and weak references."""


def is_plain_object(value: Any) -> bool:
    """Whether all the state of an object is its class and its dictionary."""
    kind = type(value)
    has_own_room = kind.__itemsize__ > 0 or kind.__basicsize__ > Plain.__basicsize__ or has_slots(kind)
    is_pickled_otherwise = kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__
    return hasattr(value, "__dict__") and not has_own_room and not is_pickled_otherwise


def has_slots(kind: type) -> bool:
    return any(getattr(base, "__slots__", ()) for base in kind.__mro__)
