"""The Python values that a function depends on besides its arguments, as part of the key of its plans.

state = FunctionState((f,))
state.read()                  hashable; the same object as long as nothing has changed
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aotgrad.guards.captured_values import Captured
from aotgrad.guards.dictionaries import are_identical
from aotgrad.guards.python_values import HashedOnce, Identity
from aotgrad.plan_cache.module_state import LiftedModule


class CapturedValues(HashedOnce):
    """The key of the values that a function has captured."""

    __slots__ = ()


@dataclass(frozen=True)
class ReadState:
    """What a function has captured, and the key of that; the tensors and keys of modules."""

    captured: Captured
    parts: Sequence[LiftedModule]
    of_parts: Sequence[tuple[Sequence[torch.Tensor], Hashable]]
    value: Hashable

    @classmethod
    def of(cls, captured: Captured) -> ReadState:
        parts = [LiftedModule(part, is_part=True) for part in captured.parts]
        of_parts = [part.read() for part in parts]
        if captured.is_empty:
            return cls(captured, parts, of_parts, None)
        keys = tuple((key, tuple(map(Identity, tensors))) for tensors, key in of_parts)
        return cls(captured, parts, of_parts, CapturedValues((captured.key(), keys)))

    def is_current(self) -> bool:
        return self.captured.is_current() and all(map(is_as_read, self.parts, self.of_parts))


def is_as_read(part: LiftedModule, before: tuple[Sequence[torch.Tensor], Hashable]) -> bool:
    """Whether a module has the same state and the same tensors."""
    tensors, key = part.read()
    return key is before[1] and are_identical(tensors, before[0])


class FunctionState:
    """What calls of functions depend on. `known`: objects that are guarded otherwise."""

    def __init__(self, functions: Iterable[Any], known: Iterable[Any] = ()) -> None:
        self.functions, self.known = tuple(functions), tuple(known)
        self.last: ReadState | None = None

    def read(self) -> Hashable:
        """The key of the present values; `None` if the functions capture none that may change."""
        last = self.last
        if last is None or not (last.value is None or last.is_current()):
            found = ReadState.of(Captured.of(self.functions, self.known))
            if last is not None and found.value == last.value:
                found = replace(found, value=last.value)  # one object is compared by identity
            last = self.last = found
        return last.value
