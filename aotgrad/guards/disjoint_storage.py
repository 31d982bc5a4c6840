"""Whether some tensors have their storages to themselves: found by their addresses, which are remembered.

In: the tensors of a call. Out: whether none of them reaches into the storage of one that is written to. As long as the
storages that are written to stay where they are, only tensors at new places are compared with them.
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
storage_bytes = torch.UntypedStorage.nbytes

Place = tuple[int, int]
"""Where memory lies: address and bytes."""


class Separation:
    """Asks that of calls that come one after the other.

    Args:
        written: the positions of tensors that are written to, each of which has to have another storage.
        others: the positions of the other tensors.
        spans: of each of these, see `span_of`; `None` where it differs from call to call.
    """

    def __init__(self, written: Sequence[int], others: Sequence[int], spans: Mapping[int, int | None]) -> None:
        sized = [k for k in others if spans[k]]
        self.written_of, self.sized_of = picker(written), picker(sized)
        self.sizes = [spans[k] or 0 for k in sized]
        self.unsized = [k for k in others if not spans[k]]
        self.others, self.spans = others, spans
        self.last = LastCheck([], set())

    def __call__(self, args: Sequence[Any]) -> bool:
        """Whether no tensor, but those that did so in the trace, reaches into the storage of a changed one."""
        last, storages = self.last, list(map(place_of_storage, self.written_of(args)))
        known = last.apart if storages == last.storages else set()
        places = self.places(args)
        used = sorted(storages)
        if not known and not are_distinct(used):
            return False
        if not places <= known and any(meets(place, used) for place in places - known):
            return False
        self.last = LastCheck(storages, places)
        return True

    def places(self, args: Sequence[Any]) -> set[Place]:
        """Where the tensors lie that are not written to."""
        starts = list(map(address, self.sized_of(args)))
        if not all(starts):  # one has no memory
            return {place_of(args[k], self.spans[k]) for k in self.others}
        return {*zip(starts, self.sizes, strict=True), *(place_of(args[k], self.spans[k]) for k in self.unsized)}


class LastCheck(NamedTuple):
    """The storages that were written to in the last call, and the places that were found apart from them."""

    storages: list[Place]
    apart: set[Place]


def are_distinct(places: Sequence[Place]) -> bool:
    """Whether no two of some places, in order, have a byte in common.

    >>> are_distinct([(100, 60), (160, 8)]), are_distinct([(100, 61), (160, 8)])
    (True, False)
    """
    return all(start + size <= later for (start, size), (later, _) in itertools.pairwise(places))


def meets(place: Place, others: Sequence[Place]) -> bool:
    """Whether a place has a byte in common with one of several, which are in order and distinct.

    >>> meets((150, 20), [(100, 60), (200, 8)]), meets((160, 40), [(100, 60), (200, 8)])
    (True, False)
    """
    start, size = place
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


def place_of(tensor: torch.Tensor, span: int | None) -> Place:
    """Where a tensor lies: address and bytes. One without elements or memory stands for the start of its storage."""
    size = span_of(tensor) if span is None else span
    start = address(tensor) if size else 0
    return (start, size or 0) if start else (place_of_storage(tensor)[0], 1)


def place_of_storage(tensor: torch.Tensor) -> Place:
    """Where the storage of a tensor lies. One without memory lies at its own address, where no tensor is."""
    storage = storage_of(tensor)
    start = storage_start(storage)
    return (start, storage_bytes(storage)) if start else (torch_compat.storage_id(tensor), 1)


def span_of(tensor: torch.Tensor) -> int | None:
    """How many bytes a tensor extends over, from its first element to its last; `None` if that is symbolic."""
    if torch_compat.has_symbolic_shape(tensor):
        return None
    if not tensor.numel():
        return 0
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    return (1 + sum((size - 1) * step for size, step in steps)) * tensor.element_size()
