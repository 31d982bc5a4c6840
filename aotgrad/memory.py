"""The guard of a plan that changes its inputs: the same arguments share memory, and version counters, as in its trace.

In the usual case no argument lies in the storage of a changed one. Addresses show that: none is within the bytes of such a
storage. They are remembered, so that a call whose tensors lie where those of the call before lay is let through at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.convention import MemorySharing
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.overlap import ByteLayout, overlapping_pairs

address = torch.Tensor.data_ptr


class MemoryGuard:
    """How arguments share memory with those that a plan changes.

    Args:
        args: those of the trace, distinct, real or fake; other values than tensors are passed over.
        sharing: how they share memory.
        counters: whether version counters are compared too; fake tensors do not tell.

    Raises:
        UnsupportedAliasingError: if two of them are the same memory in two storages, which nothing can be a view of.
    """

    def __init__(self, args: Sequence[Any], sharing: MemorySharing, counters: bool = True) -> None:
        reject_foreign_memory(args, sharing)
        self.sharing, self.counters = sharing, counters
        self.changed = sorted({*sharing.mutated, *sharing.bumped})
        self.has_address = [k for k, arg in enumerate(args) if has_address(arg)]
        self.all_have = len(self.has_address) == len(args)
        self.last: tuple[list[int], list[tuple[int, int]]] | None = None

    def __call__(self, args: Sequence[Any]) -> bool:
        starts = list(map(address, args if self.all_have else (args[k] for k in self.has_address)))
        ranges = [storage_range(args[k]) for k in self.changed]
        if (starts, ranges) == self.last:
            return True
        if not are_separate(starts, ranges):
            return self.is_as_traced(args)
        if self.sharing:
            return False
        self.last = (starts, ranges)
        return True

    def is_as_traced(self, args: Sequence[Any]) -> bool:
        found = MemorySharing.among(args, self.sharing.mutated, self.sharing.bumped)
        same = found == self.sharing if self.counters else found.groups == self.sharing.groups
        return same and foreign_memory(args, self.sharing) is None

    def groups(self) -> list[tuple[int, ...]]:
        """The positions that share elements, for people."""
        return [tuple(index for index, _ in group.starts) for group in self.sharing.groups]


def has_address(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.device.type != "meta"


def storage_range(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor's storage and the one past its last; equal if it has none."""
    if not has_address(tensor):
        return (0, 0)
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    return (start, start + storage.nbytes())


def are_separate(starts: Sequence[int], ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether each storage holds one address only: that of its own tensor."""
    in_order = sorted(starts)
    return all(bisect_right(in_order, end) - bisect_left(in_order, start) <= 1 for start, end in ranges if start < end)


def reject_foreign_memory(args: Sequence[Any], sharing: MemorySharing) -> None:
    """Raise if a changed argument shares memory, but no storage, with another one.

    Raises:
        UnsupportedAliasingError: names both arguments.
    """
    if (pair := foreign_memory(args, sharing)) is not None:
        raise UnsupportedAliasingError(
            f"inputs {pair[0]} and {pair[1]} are the same memory in two storages (made from one NumPy array?), and one of "
            "them is changed; pass views of one tensor, or a clone()"
        )


def foreign_memory(args: Sequence[Any], sharing: MemorySharing) -> tuple[int, int] | None:
    """Two arguments of different storages that have an element in common, one of which changes."""
    pairs = overlapping_pairs([layout_of(arg) for arg in args], sharing.mutated)
    keys = torch_compat.storage_key
    return next((pair for pair in sorted(pairs) if keys(args[pair[0]]) != keys(args[pair[1]])), None)


def layout_of(tensor: Any) -> ByteLayout | None:
    """Where a real tensor lies, or `None` if it has no memory: not strided, on the meta device, fake, or freed."""
    if not has_address(tensor) or torch_compat.is_traced(tensor) or not (start := address(tensor)):
        return None
    item = tensor.element_size()
    return ByteLayout(start, tuple(tensor.size()), tuple(item * step for step in tensor.stride()), item)
