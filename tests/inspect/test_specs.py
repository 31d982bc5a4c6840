"""Arguments as text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aotgrad.inspect.specs import DTYPE_NAMES, SpecError, parse_argument, parse_arguments
from aotgrad.printing import type_text


@given(st.sampled_from(sorted(DTYPE_NAMES.keys() - {"c32"})), st.lists(st.integers(0, 4), max_size=4))
def test_every_type_is_made_as_it_is_printed(dtype, size):
    text = f"{dtype}{size}"
    assert type_text(parse_argument(text)) == text


def test_strides():
    tensor = parse_argument("f32[4, 3][1, 5]")
    assert tensor.stride() == (1, 5)
    assert tensor.is_leaf


def test_flags():
    leaf, history = parse_arguments(["f32[2] requires_grad", "f32[2] nonleaf"])
    assert (leaf.requires_grad, leaf.is_leaf) == (True, True)
    assert (history.requires_grad, history.is_leaf) == (True, False)


def test_integers_are_valid_indices():
    assert parse_argument("i64[50]").unique().tolist() == [0, 1]


def test_the_same_tensor_twice():
    first, second, third = parse_arguments(["f32[2]", "same 0", "f32[2]"])
    assert first is second
    assert first is not third


@pytest.mark.parametrize(("text", "value"), [("2.5", 2.5), ("'mean'", "mean"), ("None", None), ("(1, 2)", (1, 2))])
def test_literals(text, value):
    assert parse_argument(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f31[2]", "unknown dtype 'f31'; legal are bf16, b8, "),
        ("f32[2] requires_grd", "unknown flag 'requires_grd'; legal are requires_grad, nonleaf"),
        ("f32[2, 3][1]", "has 2 sizes and 1 strides"),
        ("f32[2", "describes no argument; these do: 'f32"),
        ("same 0", "describes no argument"),
        ("hello", "describes no argument"),
    ],
)
def test_what_describes_no_argument_is_refused(text, message):
    with pytest.raises(SpecError) as raised:
        parse_argument(text)
    assert message in str(raised.value)


def test_another_device():
    assert parse_argument("f32[2]meta").device == torch.device("meta")


def test_views_of_earlier_arguments():
    base, view = parse_arguments(["f32[6] nonleaf", "view 0 [2, 2][3, 1] 1"])
    assert view._base is base and torch.equal(view, base.view(2, 3)[:, 1:])
