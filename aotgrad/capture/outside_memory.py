"""Refuses eager calls and a function around them that use the same memory without an argument or result that says so.

    total.add_(1); read_total(x)        a graph changes its argument `total` at its end: the call would read the old value

A graph reads and writes memory at other times than the function. Only arguments and results of eager calls order the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.eager_calls.call import EagerCall
from aotgrad.errors import CaptureError


@dataclass(frozen=True, eq=False)
class Input:
    """An input of a trace: its storage in this call, its placeholder, and its traced value."""

    storage: int
    placeholder: fx.Node
    traced: Any


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """A call in the trace, with the storages of its traced results that it keeps."""

    call: EagerCall
    kept: frozenset[int]


class OutsideMemoryUses:
    """The memory that the eager calls of a trace use besides their arguments.

    Args:
        real: the inputs of the trace in this call, each with its placeholder and traced value.
        writes: the mutating ops that the trace has recorded.
    """

    def __init__(
        self,
        real: Sequence[tuple[torch.Tensor, fx.Node, Any]],
        writes: Callable[[], Sequence[torch_compat.InPlaceWrite]],
    ) -> None:
        has_storage = torch_compat.has_storage
        self._inputs = [Input(torch_compat.storage_id(each), *rest) for each, *rest in real if has_storage(each)]
        self._writes = writes
        self._calls: list[RecordedCall] = []

    def reject_before(self, call: EagerCall) -> None:
        """Raise if a call reads an input that the trace has changed, or changes what an earlier call has returned.

        Raises:
            CaptureError
        """
        written = self._written_storages()
        read = call.outside.identities(call.outside.read)
        if any(each.storage in read and torch_compat.storage_id(each.traced) in written for each in self._inputs):
            raise CaptureError(
                f"{call.invocation.name}, which is not traced, reads a tensor that is no argument of it, and the function "
                "around it has changed this tensor; pass it as an argument"
            )
        changed = call.outside.identities(call.outside.changed)
        for earlier in self._calls:
            if not changed.isdisjoint(earlier.call.outside.identities(earlier.call.outside.kept.values())):
                raise CaptureError(
                    f"{call.invocation.name}, which is not traced, changes a tensor that {earlier.call.invocation.name} has "
                    "returned, and that is no argument of it; return a clone()"
                )

    def note(self, call: EagerCall, results: Sequence[torch.Tensor]) -> None:
        """Note a call that is recorded, with its traced results."""
        kept = frozenset(torch_compat.storage_id(results[k]) for k in call.outside.kept)
        self._calls.append(RecordedCall(call, kept))

    def reject_after(self, constants: Iterable[torch.Tensor]) -> None:
        """Raise if a call changes an input or constant of the whole trace, or if the trace changes a result that it keeps.

        Raises:
            CaptureError
        """
        if not self._calls:
            return
        written = self._written_storages()
        used = {torch_compat.storage_id(tensor) for tensor in constants if torch_compat.has_storage(tensor)}
        used.update(each.storage for each in self._inputs if each.placeholder.users)
        for seen in self._calls:
            outside, name = seen.call.outside, seen.call.invocation.name
            if not used.isdisjoint(outside.identities(outside.changed)):
                raise CaptureError(
                    f"{name}, which is not traced, changes a tensor that is no argument of it, and the function around it "
                    "uses this tensor; pass it as an argument"
                )
            if not written.isdisjoint(seen.kept):
                raise CaptureError(
                    f"{name}, which is not traced, returns a tensor that it keeps, and the function around it changes this "
                    "tensor; return a clone()"
                )

    def _written_storages(self) -> frozenset[int]:
        return frozenset().union(*(write.storages for write in self._writes()))
