"""Tensors made of flat memory by views."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from aotgrad.capture.functional import apply_views
from aotgrad.convention.geometry import nested_steps, reinterpret_steps, strided_steps


def test_strided():
    flat = torch.arange(10)
    assert apply_views(strided_steps((2, 3), (4, 1), 1), flat).tolist() == [[1, 2, 3], [5, 6, 7]]


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((), (), 7),
        ((4,), (1,), 5),
        ((3,), (4,), 2),
        ((2, 3), (8, 1), 9),
        ((3, 2), (1, 8), 9),
        ((2, 2, 2), (12, 4, 1), 1),
        ((1, 3, 1), (5, 1, 7), 2),
        ((3, 2), (0, 1), 4),
    ],
)
def test_nested(size, stride, offset):
    flat = torch.arange(24)
    assert (
        apply_views(nested_steps(size, stride, offset, 24), flat).tolist() == flat.as_strided(size, stride, offset).tolist()
    )


@pytest.mark.parametrize(("size", "stride", "offset"), [((2, 2), (3, 2), 0), ((2, 3), (2, 1), 0), ((3, 2), (8, 1), 7)])
def test_what_is_not_nested(size, stride, offset):
    assert nested_steps(size, stride, offset, 24) is None


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), max_size=3), st.integers(0, 8))
def test_nested_is_as_strided_or_nothing(dims, offset):
    flat = torch.arange(48)
    size, stride = tuple(n for n, _ in dims), tuple(step for _, step in dims)
    views = nested_steps(size, stride, offset, 48)
    if views is not None:
        found = apply_views(views, flat)
        assert found.tolist() == flat.as_strided(size, stride, offset).tolist()
        assert found.untyped_storage()._cdata == flat.untyped_storage()._cdata


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32, torch.int64, torch.int8])
@pytest.mark.parametrize("base", [torch.complex64, torch.float32])
@pytest.mark.parametrize("differentiable", [True, False])
def test_reinterpreted(base, dtype, differentiable):
    flat = torch.arange(4).to(base)
    found = apply_views(reinterpret_steps(base, dtype, differentiable), flat)
    assert (found.dtype, found.dim()) == (dtype, 1)
    assert torch.equal(found.view(torch.uint8), flat.view(torch.uint8))
