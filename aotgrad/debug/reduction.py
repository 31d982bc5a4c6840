"""Finds a minimal subset that still fails. No torch.

    >>> minimal_subset(range(100), lambda kept: {17, 58} <= set(kept))
    [17, 58]

Delta debugging: A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", TSE 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def minimal_subset(items: Iterable[T], fails: Callable[[list[T]], bool], largest: int | None = None) -> list[T]:
    """A subset that still fails, and from which no single item can be omitted.

    Args:
        items: fail together.
        fails: whether a subset fails, in the order of `items`.
        largest: the largest number of items to try or omit at once; all, if `None`.
    """
    kept = list(items)
    size = min(len(kept), largest or len(kept))
    while size and kept:
        smaller = _smaller(kept, size, fails)
        if smaller is None:
            size = size // 2
        else:
            kept = smaller
            size = min(size, len(kept))
    return kept


def _smaller(kept: list[T], size: int, fails: Callable[[list[T]], bool]) -> list[T] | None:
    """`size` items that fail alone, or all items without `size` of them that still fail; `None` if there are none."""
    parts = [(start, start + size) for start in range(0, len(kept), size)]
    for start, end in parts:
        if len(parts) > 1 and fails(kept[start:end]):
            return kept[start:end]
    for start, end in parts:
        if fails(kept[:start] + kept[end:]):
            return kept[:start] + kept[end:]
    return None
