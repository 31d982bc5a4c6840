"""Grouping by an id, against the definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aotgrad.analysis.storage import first_positions, group_by_key

KEYS = st.lists(st.sampled_from("abcd"), max_size=8)


@given(KEYS)
def test_positions_are_in_one_group_exactly_if_their_keys_are_equal(keys):
    groups = group_by_key(dict(enumerate(keys)))
    assert sorted(position for group in groups for position in group) == list(range(len(keys)))
    for group in groups:
        assert list(group) == [k for k, key in enumerate(keys) if key == keys[group[0]]]


@given(KEYS)
def test_groups_come_in_order_of_first_appearance(keys):
    firsts = [group[0] for group in group_by_key(dict(enumerate(keys)))]
    assert firsts == sorted(firsts)


@given(st.lists(st.sampled_from(["a", "b", None]), max_size=8))
def test_first_positions_pass_over_none(keys):
    assert first_positions(keys) == {key: keys.index(key) for key in keys if key is not None}
