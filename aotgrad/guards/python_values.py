"""What a Python value counts as when plans are compared: equal keys for values that no trace can tell apart.

    hashable_key(1), hashable_key(1.0), hashable_key(True)       three different ones
    hashable_key(0.0) == hashable_key(-0.0)                      False: 1 / x differs
    hashable_key(float("nan")) == hashable_key(float("nan"))     True

Numbers, strings, enums, containers and objects count by their content, all the way down; functions, classes and modules
of Python by identity; tensors and random generators that hide in an object by identity too, since a plan reads them at
every call.
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
BY_IDENTITY = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, weakref.ref)
BY_IDENTITY += (torch._ops.OpOverload, torch.fx.Graph)


class Same:
    """Stands for one object, without keeping it alive where that can be: equal to itself while the object lives."""

    __slots__ = ("hash", "object")

    def __init__(self, value: Any) -> None:
        self.hash = id(value)
        try:
            self.object: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self.object = lambda: value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and (mine := self.object()) is not None and mine is other.object()

    def __hash__(self) -> int:
        return self.hash


Seen = dict[int, tuple[Any, Hashable]]


def hashable_key(value: Any, seen: Seen | None = None) -> Hashable:
    """A hashable stand-in for `value`.

    What has content that cannot be read (a generator, an open file) equals nothing, itself included: it may have changed.

    Args:
        value: anything.
        seen: objects that are not entered again, by id, and what they count as.

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
    if isinstance(value, torch.Tensor | torch.Generator):
        return Same(value)
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)][1]
    seen[id(value)] = (value, ("seen", len(seen)))
    content = contents(value, seen)
    seen[id(value)] = (value, content)  # with the object, so that its id stays its own
    return content


def is_constant(value: Any) -> bool:
    """Whether a value has no state that could change: what it counts as is fixed."""
    return type(value) in PLAIN or isinstance(
        value, (float, complex, enum.Enum, torch.Tensor, torch.Generator, *BY_IDENTITY)
    )


def contents(value: Any, seen: Seen) -> Hashable:
    """The key of something that has parts."""
    kind = type(value)
    if kind is complex:
        return (kind, value.real.hex(), value.imag.hex())
    if kind in (tuple, list, torch.Size):
        return (kind, *(hashable_key(item, seen) for item in value))
    if kind is dict:
        return (kind, *((hashable_key(key, seen), hashable_key(item, seen)) for key, item in value.items()))
    if kind in (set, frozenset):
        return (kind, frozenset(hashable_key(item, seen) for item in value))
    return (kind, *reduced(value, seen))


def reduced(value: Any, seen: Seen) -> tuple[Hashable, ...]:
    """What pickling would store of an object: its class, its state, its items."""
    try:
        parts = value.__reduce_ex__(2)
    except Exception:  # whatever an object's own __reduce__ raises
        return (object(),)
    if isinstance(parts, str):
        return (Same(value),)
    return tuple(hashable_key(list(part) if k > 2 and part is not None else part, seen) for k, part in enumerate(parts))
