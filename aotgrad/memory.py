"""The guard of a plan that changes its inputs: the same arguments share memory, and version counters, as in its trace.

In the usual case no argument reaches into the storage of a changed one. Addresses show that, and are remembered: a call
whose tensors lie where those of the call before lay is let through at once, and only what moved is looked at anew.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from aotgrad import torch_compat
from aotgrad.convention import MemorySharing, same_storage
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.ir import Geometry
from aotgrad.overlap import ByteLayout, overlapping_pairs

address = torch.Tensor.data_ptr
storage_of = torch.Tensor.untyped_storage
storage_start = torch.UntypedStorage.data_ptr
storage_bytes = torch.UntypedStorage.nbytes


class MemoryGuard:
    """How arguments share memory with those that a plan changes.

    Args:
        args: those of the trace, distinct, real or fake; other values than tensors are passed over.
        sharing: how they share memory.
        traced: what they were traced as, where it is not `args`: sizes that are symbolic there differ from call to call.
        counters: whether version counters are compared too; fake tensors do not tell.
        closure: the last of `args`, if they are no arguments of a call.

    Raises:
        UnsupportedAliasingError: if two of them are the same memory in two storages, which nothing can be a view of.
    """

    def __init__(
        self,
        args: Sequence[Any],
        sharing: MemorySharing,
        traced: Sequence[Any] = (),
        counters: bool = True,
        closure: Sequence[torch.Tensor] = (),
    ) -> None:
        reject_foreign_memory(args, sharing)
        self.sharing, self.counters, self.closure = sharing, counters, closure
        self.changed = sorted({*sharing.mutated, *sharing.bumped})
        self.storages = same_storage(args, self.changed)
        self.sharers = [k for sharers in self.storages for k in sharers]
        self.sharers_of = picker(self.sharers)
        there = [k for k, arg in enumerate(args) if has_address(arg)]
        written = [sharers[0] for sharers in self.storages] + [k for k in self.changed if k not in self.sharers]
        others = [k for k in there if k not in self.changed and k not in self.sharers]
        self.is_alone = len(there) < 2
        self.written_of = picker([k for k in written if k in there])
        self.spans = {k: span_of((traced or args)[k]) for k in others}
        static = [k for k in others if self.spans[k]]
        moving = [k for k in others if not self.spans[k]]
        self.last = Last(Settled(moving, static, picker(static), None, NOWHERE), None, NOWHERE)
        self.growing = [k for k in self.sharers if torch_compat.is_symbolic((traced or args)[k])]
        self.verified: tuple | None = None

    def __call__(self, args: Sequence[Any]) -> bool:
        if self.is_alone:
            return True
        if self.closure:
            args = (*args, *self.closure)
        if not self.others_are_apart(args):
            return self.is_as_traced(args)
        if not self.sharers:
            return True
        places = self.places_of_sharers(args)
        if places is not None and places == self.verified:
            return True
        if found := self.is_as_traced(args):
            self.verified = places
        return found

    def others_are_apart(self, args: Sequence[Any]) -> bool:
        """Whether no tensor, but those that did so in the trace, reaches into the storage of a changed one."""
        settled, known, used = last = self.last
        storages = [(storage_start(storage), storage_bytes(storage)) for storage in map(storage_of, self.written_of(args))]
        starts = list(map(address, settled.of(args)))
        if starts != settled.starts:
            settled, known = self.settle(settled, starts), None
        if storages != known:
            used = Extents.of(storages)
            last = Last(settled, storages, used)
            if not (used.are_distinct() and are_apart(used, settled.extents)):
                return False
        if settled.others and not are_apart(self.extents(args, settled.others), used):
            return False
        self.last = last
        return True

    def places_of_sharers(self, args: Sequence[Any]) -> tuple | None:
        """What decides how tensors share a storage, and their versions, if all are views of one tensor; else `None`.

        A view that lies at its old address, within the storage of its base, lies in that storage.
        """
        tensors = self.sharers_of(args)
        bases = [tensor._base for tensor in tensors]
        base_ids = list(map(id, bases))
        distinct = dict(zip(base_ids, bases, strict=True))
        if id(None) in distinct:  # some are no views, but roots themselves
            del distinct[id(None)]
            distinct |= {id(tensor): tensor for tensor, base in zip(tensors, bases, strict=True) if base is None}
        if len(distinct) > len(self.storages):
            return None
        roots = [(key, torch_compat.storage_id(root), Geometry.of(root)) for key, root in distinct.items()]
        growing = [Geometry.of(args[k]) for k in self.growing]
        return list(map(address, tensors)), base_ids, roots, growing

    def settle(self, before: Settled, starts: Sequence[int]) -> Settled:
        """What is known of a call in which a tensor that had settled was moved: it may move again."""
        stays = [k for k, start in enumerate(starts) if before.starts is None or start == before.starts[k]]
        positions, places = [before.positions[k] for k in stays], [starts[k] for k in stays]
        others = sorted({*before.others, *before.positions}.difference(positions))
        extents = Extents.of([(start, self.spans[k] or 0) for start, k in zip(places, positions, strict=True)])
        return Settled(others, positions, picker(positions), places, extents)

    def extents(self, args: Sequence[Any], positions: Sequence[int]) -> Extents:
        """Where some of the arguments lie now."""
        return Extents.of([place_of(args[k], self.spans[k]) for k in positions])

    def is_as_traced(self, args: Sequence[Any]) -> bool:
        found = MemorySharing.among(args, self.sharing.mutated, self.sharing.hidden, self.sharing.bumped)
        same = found == self.sharing if self.counters else found.groups == self.sharing.groups
        return same and foreign_memory(args, self.sharing) is None

    def groups(self) -> list[tuple[int, ...]]:
        """The positions that share elements, for people."""
        return [tuple(index for index, _ in group.starts) for group in self.sharing.groups]


class Extents(NamedTuple):
    """Where tensors lie: (first byte, one past the last), by the first; `ends[k]` is the highest end of the first `k + 1`.

    >>> Extents.of([(200, 8), (100, 160), (0, 0)])
    Extents(places=[(100, 260), (200, 208)], starts=[100, 200], ends=[260, 260])
    """

    places: list[tuple[int, int]]
    starts: list[int]
    ends: list[int]

    @classmethod
    def of(cls, places: Sequence[tuple[int, int]]) -> Extents:
        """Of (address, bytes); without an address there is no memory."""
        there = sorted((start, start + size) for start, size in places if start)
        return cls(there, [start for start, _ in there], list(accumulate((end for _, end in there), max)))

    def meet(self, place: tuple[int, int]) -> bool:
        """Whether one of them has a byte of `place`."""
        before_end = bisect_left(self.starts, place[1])
        return before_end > 0 and self.ends[before_end - 1] > place[0]

    def are_distinct(self) -> bool:
        """Whether no two of them have a byte in common."""
        return len(self.places) < 2 or all(end <= start for end, start in zip(self.ends, self.starts[1:], strict=False))


NOWHERE = Extents([], [], [])


def are_apart(some: Extents, others: Extents) -> bool:
    """Whether no byte belongs to both."""
    fewer, more = (some, others) if len(some.places) < len(others.places) else (others, some)
    return not any(map(more.meet, fewer.places))


class Settled(NamedTuple):
    """Unchanged tensors: those at `positions` lay at `starts` in every call so far, `others` move, or grow.

    `starts` is `None` before the first call; `of` takes the settled ones out of the arguments.
    """

    others: list[int]
    positions: list[int]
    of: Callable[[Sequence[Any]], tuple]
    starts: list[int] | None
    extents: Extents


class Last(NamedTuple):
    """Where tensors lay when the changed ones last had their storages, (address, bytes) each, to themselves."""

    settled: Settled
    storages: list[tuple[int, int]] | None
    used: Extents


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple]:
    """A function that takes the items at `positions`."""
    match positions:
        case []:
            return lambda items: ()
        case [position]:
            return lambda items: (items[position],)
        case _:
            return operator.itemgetter(*positions)


def has_address(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.device.type != "meta"


def place_of(tensor: torch.Tensor, span: int | None) -> tuple[int, int]:
    """Where a tensor lies: address and bytes. An empty one has no address, and stands for the start of its storage."""
    size = span_of(tensor) if span is None else span
    return (address(tensor), size) if size else (storage_start(storage_of(tensor)), 1)


def span_of(tensor: torch.Tensor) -> int | None:
    """How many bytes a tensor extends over, from its first element to its last; `None` if that is symbolic."""
    if torch_compat.is_symbolic(tensor):
        return None
    if not tensor.numel():
        return 0
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    return (1 + sum((size - 1) * step for size, step in steps)) * tensor.element_size()


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
