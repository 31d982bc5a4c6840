"""Decides exactly whether two strided tensors share memory. Works on integers, without torch.

    rows = ByteLayout(0, (3, 2), (16, 4), 4)             x[:, :2] of a float32 x of shape (3, 4)
    others = ByteLayout(8, (3, 2), (16, 4), 4)           x[:, 2:]: same storage, interleaved, no common element
    overlap(rows, others)                                False

An element of `a` at byte `p` and one of `b` at byte `q` share a byte exactly if `-b.itemsize < q - p < a.itemsize`.
All differences `q - p` are a constant plus `sum(stride * index)` over the dimensions of both tensors, with every index from
0 to its size minus one (the dimensions of the first are reversed, so that all signs are positive). So the question is
whether a *bounded sum* hits a window of integers. In general this is NP-complete (it contains subset sum); NumPy's
`may_share_memory` solves the same problem (Virtanen, numpy#6166). Strides of real tensors are nearly nested: absorbing
dense dimensions into the window leaves one or two, which a short search decides.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
SEARCH_STEPS = 20_000


class ByteLayout(NamedTuple):
    """The layout of a strided tensor, in bytes.

    Attributes:
        offset: of the first element, from an origin common to both tensors: a storage, or address 0.
        sizes: of every dimension.
        strides: of every dimension, not negative.
        itemsize: of one element.
    """

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @classmethod
    def of(cls, tensor: Any) -> ByteLayout:
        """The layout of a tensor in its storage. Symbolic sizes become numbers, with a guard."""
        itemsize = tensor.element_size()
        sizes, strides = tuple(map(int, tensor.size())), tuple(int(step) * itemsize for step in tensor.stride())
        return cls(int(tensor.storage_offset()) * itemsize, sizes, strides, itemsize)

    @property
    def end(self) -> int:
        """One past the last byte, if there is an element."""
        return self.offset + self.itemsize + sum((n - 1) * step for n, step in zip(self.sizes, self.strides, strict=True))


class Term(NamedTuple):
    """`stride * index` for an index from 0 to `count`."""

    stride: int
    count: int


def overlap(a: ByteLayout, b: ByteLayout) -> bool:
    """Whether an element of `a` and one of `b` have a byte in common.

    Exact, unless the strides are so far from nested that the search exceeds `SEARCH_STEPS`; then `True`, which is safe.

    >>> row, column = ByteLayout(0, (4,), (4,), 4), ByteLayout(0, (3,), (16,), 4)
    >>> overlap(row, column), overlap(row, column._replace(offset=16))
    (True, False)
    """
    if 0 in a.sizes or 0 in b.sizes or a.end <= b.offset or b.end <= a.offset:
        return False
    start = a.end - a.itemsize - b.offset
    low, high = start - b.itemsize + 1, start + a.itemsize - 1
    return hits_window([*terms(a), *terms(b)], low, high)


def terms(layout: ByteLayout) -> list[Term]:
    return [Term(step, n - 1) for n, step in zip(layout.sizes, layout.strides, strict=True) if n > 1 and step]


def hits_window(terms: Sequence[Term], low: int, high: int) -> bool:
    """Whether a sum of one value of each term lies in `low..high`.

    >>> hits_window([Term(10, 3), Term(3, 1)], 14, 19), hits_window([Term(10, 3), Term(3, 1)], 12, 13)
    (False, True)
    """
    sparse: list[Term] = []
    for stride, count in sorted(terms):
        if stride <= high - low + 1:
            low -= stride * count  # windows that touch or overlap are one wider window
        else:
            sparse.append(Term(stride, count))
    return Search(sparse[::-1]).hits(0, low, high)


class Search:
    """Depth-first search over the terms, largest stride first; reach and divisor of the remaining terms bound each index."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self.terms = terms
        self.steps = 0
        self.reach = [0]
        self.divisor = [0]
        for stride, count in reversed(terms):
            self.reach.insert(0, self.reach[0] + stride * count)
            self.divisor.insert(0, math.gcd(self.divisor[0], stride))

    def hits(self, k: int, low: int, high: int) -> bool:
        """Whether terms `k` and later have a sum in `low..high`; `True` also if the search takes too long."""
        self.steps += 1
        if self.steps > SEARCH_STEPS:
            return True
        low, high = max(low, 0), min(high, self.reach[k])
        if low > high or not has_multiple(self.divisor[k], low, high):
            return False
        if k >= len(self.terms) - 1:
            return True
        stride, count = self.terms[k]
        first = max(0, -((self.reach[k + 1] - low) // stride))
        last = min(count, high // stride)
        return any(self.hits(k + 1, low - stride * x, high - stride * x) for x in range(first, last + 1))


def has_multiple(divisor: int, low: int, high: int) -> bool:
    """Whether a multiple of `divisor` (of 0: only 0 itself) lies in `low..high`."""
    return high // divisor * divisor >= low if divisor else low <= 0 <= high


def linked_groups(items: Sequence[T], seeds: Collection[T], are_linked: Callable[[T, T], bool]) -> list[list[T]]:
    """For each seed, the items linked to it, directly or through others; each group once, in the order of `items`.

    >>> linked_groups([1, 8, 2, 9, 3, 4], [2, 3, 9], lambda a, b: abs(a - b) == 1)
    [[1, 2, 3, 4], [8, 9]]
    """
    groups: list[list[T]] = []
    for seed in items:
        if seed in seeds and not any(seed in group for group in groups):
            groups.append(reachable(items, seed, are_linked))
    return groups


def reachable(items: Sequence[T], seed: T, are_linked: Callable[[T, T], bool]) -> list[T]:
    """The items linked to `seed`, directly or through others, in the order of `items`."""
    found, frontier = [seed], [seed]
    while frontier:
        item = frontier.pop()
        new = [other for other in items if other not in found and are_linked(item, other)]
        found, frontier = found + new, frontier + new
    return [item for item in items if item in found]


def overlapping_pairs(layouts: Sequence[ByteLayout | None], written: Sequence[int]) -> frozenset[tuple[int, int]]:
    """The pairs of tensors that share memory, one of them written to, as positions with the smaller first.

    Args:
        layouts: of all tensors; `None` for a tensor without strided memory.
        written: positions of the written tensors.

    >>> first, second = ByteLayout(0, (4,), (4,), 4), ByteLayout(12, (4,), (4,), 4)
    >>> overlapping_pairs([first, second, second], [0])
    frozenset({(0, 1), (0, 2)})
    """
    present = {k: layout for k, layout in enumerate(layouts) if layout is not None}
    by_start = sorted((layout.offset, k) for k, layout in present.items())
    longest = max((layout.end - layout.offset for layout in present.values()), default=0)
    pairs = set()
    for k in present.keys() & set(written):
        low, high = present[k].offset - longest, present[k].end
        near = by_start[bisect_left(by_start, (low, -1)) : bisect_left(by_start, (high, -1))]
        pairs.update((min(j, k), max(j, k)) for _, j in near if j != k and overlap(present[k], present[j]))
    return frozenset(pairs)
