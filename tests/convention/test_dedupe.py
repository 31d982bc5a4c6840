"""Duplicates merged and put back."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from aotgrad.convention import Dedupe

TENSORS = [torch.ones(1) * k for k in range(4)]
ARGUMENTS = st.lists(st.sampled_from([*TENSORS, 1, 2]), max_size=8)


def same_objects(one, other) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


@given(ARGUMENTS)
def test_exit_undoes_enter(args):
    dedupe = Dedupe.of(args)
    assert same_objects(dedupe.exit(dedupe.enter(args)), args)


@given(ARGUMENTS)
def test_no_tensor_is_left_twice(args):
    tensors = [id(arg) for arg in Dedupe.of(args).enter(args) if isinstance(arg, torch.Tensor)]
    assert len(tensors) == len(set(tensors))


@given(ARGUMENTS)
def test_numbers_stay_apart(args):
    distinct = Dedupe.of(args).enter(args)
    assert [arg for arg in distinct if isinstance(arg, int)] == [arg for arg in args if isinstance(arg, int)]


@given(ARGUMENTS, ARGUMENTS)
def test_matches_says_whether_the_pattern_is_the_same(args, others):
    assert Dedupe.of(args).matches(others) == (Dedupe.of(args) == Dedupe.of(others))


def test_identity():
    x, y = TENSORS[:2]
    assert Dedupe.of([x, y]).is_identity
    assert not Dedupe.of([x, y, x]).is_identity
