"""Where a sequence repeats itself: the layers of a model, in the order of its ops. There is no torch in it.

    find_repeats("eabcabcabcax", least=2)       [Repeat(start=1, period=3, count=3, slack=1)]

"abc" is there three times from 1 on; from 2 on (the slack), "bca" is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

CANDIDATES = 16
"""How many periods are tried for a part of a sequence."""


@dataclass(frozen=True)
class Repeat:
    """`count` equal blocks of `period` items, one behind the other, which may begin up to `slack` items later, too."""

    start: int
    period: int
    count: int
    slack: int

    @property
    def stop(self) -> int:
        """The end of all items that belong to a block, wherever the first one begins."""
        return self.start + self.count * self.period + self.slack

    @property
    def saved(self) -> int:
        """The number of items that equal one of the first block."""
        return (self.count - 1) * self.period


def find_repeats(items: Sequence[Hashable], least: int) -> list[Repeat]:
    """The repeats of blocks of at least `least` items, in order; those that save most are found first."""
    number_of: dict[Hashable, int] = {}
    numbers = [number_of.setdefault(item, len(number_of)) for item in items]
    found: list[Repeat] = []
    parts = [(0, len(numbers))]
    while parts:
        start, stop = parts.pop()
        if best := best_repeat(numbers, start, stop, least):
            found.append(best)
            parts += [(start, best.start), (best.stop, stop)]
    return sorted(found, key=lambda repeat: repeat.start)


def best_repeat(numbers: Sequence[int], start: int, stop: int, least: int) -> Repeat | None:
    """The repeat between two positions that saves most; of equal ones, the one with the shortest period."""
    periods = [period for period, _ in likely_periods(numbers, start, stop, least).most_common(CANDIDATES)]
    repeats = [repeat for period in periods for repeat in repeats_of(numbers, start, stop, period)]
    return max(repeats, key=lambda repeat: (repeat.saved, -repeat.period), default=None)


def likely_periods(numbers: Sequence[int], start: int, stop: int, least: int) -> Counter[int]:
    """How often each distance lies between `least` items and the next time that they are there."""
    last: dict[tuple[int, ...], int] = {}
    distances: Counter[int] = Counter()
    for position in range(start, stop - least + 1):
        items = tuple(numbers[position : position + least])
        distance = position - last.get(items, position)
        if distance >= least:
            distances[distance] += 1
        last[items] = position
    return distances


def repeats_of(numbers: Sequence[int], start: int, stop: int, period: int) -> Iterator[Repeat]:
    """The repeats with this period."""
    first = start
    for position in range(start, stop - period + 1):
        if position == stop - period or numbers[position] != numbers[position + period]:
            if (length := position - first) >= period:
                yield Repeat(first, period, length // period + 1, length % period)
            first = position + 1
