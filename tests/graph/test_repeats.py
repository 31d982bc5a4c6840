"""Where a sequence repeats itself."""

from __future__ import annotations

import itertools
import random

import pytest

from aotgrad.graph.repeats import Repeat, find_repeats


@pytest.mark.parametrize(
    ("items", "least", "expected"),
    [
        ("", 1, []),
        ("abcd", 1, []),
        ("eabcabcabcax", 2, [Repeat(1, 3, 3, 1)]),
        ("xyxyxyQabcdabcdabcd", 2, [Repeat(0, 2, 3, 0), Repeat(7, 4, 3, 0)]),
        ("xyxyxyQabcdabcdabcd", 3, [Repeat(7, 4, 3, 0)]),
        ("aabaab", 3, [Repeat(0, 3, 2, 0)]),
    ],
)
def test_blocks_that_are_there_several_times(items: str, least: int, expected: list[Repeat]) -> None:
    assert find_repeats(items, least) == expected


def test_all_blocks_are_equal_wherever_the_first_one_begins() -> None:
    draw = random.Random(0)
    for _ in range(50):
        block = [draw.randrange(9) for _ in range(draw.randrange(6, 12))]
        count, ends = draw.randrange(2, 6), [[draw.randrange(100, 200) for _ in range(5)] for _ in range(2)]
        items = [*ends[0], *(block * count), *ends[1]]
        found = find_repeats(items, 5)
        assert sum(repeat.saved for repeat in found) >= (count - 1) * len(block)
        for repeat in found:
            for start in range(repeat.start, repeat.start + repeat.slack + 1):
                starts = [start + k * repeat.period for k in range(repeat.count)]
                blocks = [items[each : each + repeat.period] for each in starts]
                assert all(each == blocks[0] for each in blocks) and starts[-1] + repeat.period <= repeat.stop


def test_repeats_do_not_overlap() -> None:
    found = find_repeats([*"abcdefgh" * 3, *"xyz", *"ijklmnop" * 4, *"abcdefgh" * 2], 4)
    assert [(repeat.period, repeat.count) for repeat in found] == [(8, 3), (8, 4), (8, 2)]
    assert all(one.stop <= other.start for one, other in itertools.pairwise(found))
