"""Which of many things are needed for a failure. No torch.

    >>> needed(range(100), lambda kept: {17, 58} <= set(kept))
    [17, 58]

Delta debugging: A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", TSE 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def needed(items: Iterable[T], fails: Callable[[list[T]], bool], largest: int | None = None) -> list[T]:
    """A subset that still fails, of which no single item can be left out.

    Args:
        items: all of them fail together.
        fails: whether some of them do, in their order.
        largest: at most so many items are tried or left out at once; all, if `None`.
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
    """One part of `size` items that fails alone, or else what is left without such a part; `None` if nothing does."""
    parts = [(start, start + size) for start in range(0, len(kept), size)]
    for start, end in parts:
        if len(parts) > 1 and fails(kept[start:end]):
            return kept[start:end]
    for start, end in parts:
        if fails(kept[:start] + kept[end:]):
            return kept[:start] + kept[end:]
    return None
