"""Whether some tensors have their storages to themselves: found by their addresses, which are remembered.

In: where tensors lay at the call before, and the tensors of this call. Out: whether none of them reaches into the storage of
one that is written to. A call whose tensors lie where those of the call before lay is let through at once, and only what
moved is looked at anew.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from aotgrad import torch_compat

address = torch.Tensor.data_ptr
storage_of = torch.Tensor.untyped_storage
storage_start = torch.UntypedStorage.data_ptr
storage_bytes = torch.UntypedStorage.nbytes


class Separation:
    """Asks that of calls that come one after the other.

    Args:
        written: the positions of tensors that are written to, each of which has to have another storage.
        others: the positions of the other tensors.
        spans: of each of these, see `span_of`; `None` where it differs from call to call.
    """

    def __init__(self, written: Sequence[int], others: Sequence[int], spans: Mapping[int, int | None]) -> None:
        self.spans = spans
        self.written_of = picker(written)
        static = [k for k in others if spans[k]]
        moving = [k for k in others if not spans[k]]
        self.last = LastCheck(StableInputs(moving, static, picker(static), None, NOWHERE), None, NOWHERE)

    def __call__(self, args: Sequence[Any]) -> bool:
        """Whether no tensor, but those that did so in the trace, reaches into the storage of a changed one."""
        settled, known, used = last = self.last
        storages = list(map(place_of_storage, self.written_of(args)))
        starts = list(map(address, settled.of(args)))
        if starts != settled.starts:
            settled, known = self.settle(settled, starts), None
        if storages != known:
            used = Extents.of(storages)
            last = LastCheck(settled, storages, used)
            if not (used.are_distinct() and are_apart(used, settled.extents)):
                return False
        if settled.others and not are_apart(self.extents(args, settled.others), used):
            return False
        self.last = last
        return True

    def settle(self, before: StableInputs, starts: Sequence[int]) -> StableInputs:
        """What is known of a call in which a tensor that had settled was moved: it may move again."""
        stays = [k for k, start in enumerate(starts) if start and (before.starts is None or start == before.starts[k])]
        positions, places = [before.positions[k] for k in stays], [starts[k] for k in stays]
        others = sorted({*before.others, *before.positions}.difference(positions))
        extents = Extents.of([(start, self.spans[k] or 0) for start, k in zip(places, positions, strict=True)])
        return StableInputs(others, positions, picker(positions), places, extents)

    def extents(self, args: Sequence[Any], positions: Sequence[int]) -> Extents:
        """Where some of the arguments lie now."""
        return Extents.of([place_of(args[k], self.spans[k]) for k in positions])


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


class StableInputs(NamedTuple):
    """Unchanged tensors: those at `positions` lay at `starts` in every call so far, `others` move, or grow.

    `starts` is `None` before the first call; `of` takes the settled ones out of the arguments.
    """

    others: list[int]
    positions: list[int]
    of: Callable[[Sequence[Any]], tuple]
    starts: list[int] | None
    extents: Extents


class LastCheck(NamedTuple):
    """Where tensors lay when the changed ones last had their storages, (address, bytes) each, to themselves."""

    settled: StableInputs
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


def place_of(tensor: torch.Tensor, span: int | None) -> tuple[int, int]:
    """Where a tensor lies: address and bytes. One without elements or memory stands for the start of its storage."""
    size = span_of(tensor) if span is None else span
    start = address(tensor) if size else 0
    return (start, size or 0) if start else (place_of_storage(tensor)[0], 1)


def place_of_storage(tensor: torch.Tensor) -> tuple[int, int]:
    """Where the storage of a tensor lies. One without memory lies at its own address, where no tensor is."""
    storage = storage_of(tensor)
    start = storage_start(storage)
    return (start, storage_bytes(storage)) if start else (torch_compat.storage_id(tensor), 1)


def span_of(tensor: torch.Tensor) -> int | None:
    """How many bytes a tensor extends over, from its first element to its last; `None` if that is symbolic."""
    if torch_compat.is_symbolic(tensor):
        return None
    if not tensor.numel():
        return 0
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    return (1 + sum((size - 1) * step for size, step in steps)) * tensor.element_size()
