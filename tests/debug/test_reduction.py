"""Which of many things are needed for a failure."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st

from aotgrad.debug.reduction import minimal_subset


def test_nothing_is_needed_for_what_always_fails():
    assert minimal_subset(range(10), lambda kept: True) == []


def test_one_of_many_is_found_in_few_steps():
    tried = []

    def fails(kept):
        tried.append(kept)
        return 700 in kept

    assert minimal_subset(range(1024), fails) == [700]
    assert len(tried) < 50


@hypothesis.given(st.integers(0, 40), st.data())
def test_exactly_what_fails_together_is_kept(count, data):
    culprits = data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=min(count, 5)))
    assert minimal_subset(range(count), lambda kept: culprits <= set(kept)) == sorted(culprits)


@hypothesis.given(st.integers(1, 12), st.integers(0, 2**16))
def test_no_single_item_can_be_left_out(count, seed):
    """Also where failing is not monotone."""

    def fails(kept):
        return len(kept) == count or hash((seed, *kept)) % 3 == 0

    kept = minimal_subset(range(count), fails)
    assert fails(kept)
    assert not any(fails(kept[:k] + kept[k + 1 :]) for k in range(len(kept)))


def test_no_more_than_so_many_at_once():
    sizes = []

    def fails(kept):
        sizes.append(16 - len(kept))
        return 3 in kept

    assert minimal_subset(range(16), fails, largest=2) == [3]
    assert sizes[0] in (14, 2)
