"""Whether changed tensors have their storages to themselves, decided from addresses.

In: the tensors of a call. Out: whether none of them reaches into the storage of a changed one. The last call is kept:
while the storages of the changed tensors stay where they are, only tensors at new addresses are compared with them.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from aotgrad import torch_compat

address = torch.Tensor.data_ptr
storage_of = torch.Tensor.untyped_storage
storage_start = torch.UntypedStorage.data_ptr
storage_size = torch.UntypedStorage.nbytes

Interval = tuple[int, int]
"""Where memory lies: address and bytes."""


class Separation:
    """The check, for consecutive calls.

    Args:
        written: the positions of changed tensors, one for each storage.
        others: the positions of the other tensors.
        spans: for each of these, see `span_of`; `None` where it differs from call to call.
    """

    def __init__(self, written: Sequence[int], others: Sequence[int], spans: Mapping[int, int | None]) -> None:
        sized = [k for k in others if spans[k]]
        self.written_of, self.sized_of = picker(written), picker(sized)
        self.sizes = [spans[k] or 0 for k in sized]
        self.unsized = [k for k in others if not spans[k]]
        self.others, self.spans = others, spans
        self.last = LastCheck([], [])

    def __call__(self, args: Sequence[Any]) -> bool:
        """Whether no two storages of changed tensors overlap, and none of the other tensors reaches into one."""
        storages = intervals_of_storages(self.written_of(args))
        starts = list(map(address, self.sized_of(args)))
        is_known = storages == self.last.storages
        if is_known and starts == self.last.starts and not self.unsized and all(starts):
            return True
        used = sorted(storages)
        if not is_known and not are_distinct(used):
            return False
        if any_meets(self.moved(starts, self.last.starts if is_known else (), args), used):
            return False
        self.last = LastCheck(storages, starts)
        return True

    def moved(self, starts: Sequence[int], before: Sequence[int], args: Sequence[Any]) -> list[Interval]:
        """Where the unchanged tensors lie that may have moved; those with a known span lay at `before`, if that is known."""
        if not all(starts):  # one has no memory
            return [interval_of(args[k], self.spans[k]) for k in self.others]
        places = [*zip(starts, self.sizes, strict=True)]
        if before:
            places = [place for place, old in zip(places, before, strict=True) if place[0] != old]
        return places + [interval_of(args[k], self.spans[k]) for k in self.unsized]


class LastCheck(NamedTuple):
    """The storages of the changed tensors in the last call, and the addresses of the other tensors with a known span.

    The latter do not overlap the former.
    """

    storages: list[Interval]
    starts: list[int]


def are_distinct(intervals: Sequence[Interval]) -> bool:
    """Whether no two of some sorted intervals overlap.

    >>> are_distinct([(100, 60), (160, 8)]), are_distinct([(100, 61), (160, 8)])
    (True, False)
    """
    return all(start + size <= later for (start, size), (later, _) in itertools.pairwise(intervals))


def any_meets(some: Sequence[Interval], others: Sequence[Interval]) -> bool:
    """Whether one of several intervals overlaps one of others, which are sorted and distinct."""
    if len(others) != 1:
        return any(meets(interval, others) for interval in some)
    ((start, size),) = others
    end = start + size
    return any(other < end and other + extent > start for other, extent in some)  # one is common: no call for each


def meets(interval: Interval, others: Sequence[Interval]) -> bool:
    """Whether an interval overlaps one of several, which are sorted and distinct.

    >>> meets((150, 20), [(100, 60), (200, 8)]), meets((160, 40), [(100, 60), (200, 8)])
    (True, False)
    """
    start, size = interval
    before_end = bisect_left(others, (start + size,))
    return before_end > 0 and sum(others[before_end - 1]) > start


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple]:
    """A function that takes the items at `positions`."""
    match positions:
        case []:
            return lambda items: ()
        case [position]:
            return lambda items: (items[position],)
        case _:
            return operator.itemgetter(*positions)


def interval_of(tensor: torch.Tensor, span: int | None) -> Interval:
    """Where a tensor lies. One without elements or memory counts as the first byte of its storage."""
    size = span_of(tensor) if span is None else span
    start = address(tensor) if size else 0
    return (start, size or 0) if start else (interval_of_storage(tensor)[0], 1)


def intervals_of_storages(tensors: Sequence[torch.Tensor]) -> list[Interval]:
    """`interval_of_storage` of each tensor, without a call in Python for each."""
    storages = list(map(storage_of, tensors))
    starts = list(map(storage_start, storages))
    if not all(starts):
        return list(map(interval_of_storage, tensors))
    return list(zip(starts, map(storage_size, storages), strict=True))


def interval_of_storage(tensor: torch.Tensor) -> Interval:
    """Where the storage of a tensor lies. One without memory counts as the storage object itself, where no tensor lies."""
    storage = storage_of(tensor)
    start = storage_start(storage)
    return (start, storage_size(storage)) if start else (torch_compat.storage_id(tensor), 1)


def span_of(tensor: torch.Tensor) -> int | None:
    """The bytes from the first element of a tensor to its last; `None` if that is symbolic."""
    if torch_compat.has_symbolic_shape(tensor):
        return None
    if not tensor.numel():
        return 0
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    return (1 + sum((size - 1) * step for size, step in steps)) * tensor.element_size()
