"""Reads of the new values of inputs in a backward."""

from __future__ import annotations

import pytest

from aotgrad.slots import Primal, UpdatedInput
from tests.executables import executable_of


def read(function, *specs: str):
    """(reached, leads, values) of the nodes of the only segment that read an input's new value."""
    (segment,) = executable_of(function, *specs).joint.segments
    return [(n.tangent_mask, n.gradient_mask, set(n.values)) for n in segment.saving if UpdatedInput(0) in n.values]


@pytest.mark.parametrize(
    ("function", "is_read"),
    [
        (lambda x: x[0].relu_(), True),
        (lambda x: x.t().relu_(), True),
        (lambda x: x.relu_(), True),
        (lambda x: x[0].mul_(2), False),
        (lambda x: x.add_(1), False),
        (lambda x: x.copy_(x.relu()), False),
    ],
)
def test_new_values_that_a_backward_reads(function, is_read):
    assert bool(read(function, "f32[2, 3] nonleaf")) == is_read


def test_from_where_to_where():
    """The gradients of both terms of the sum pass through the read of the new value; the gradient of the scale does not."""

    def f(x, y, scale):
        x.add_(y)
        x[0].relu_()
        return scale * 2

    segments = executable_of(f, "f32[2, 3] nonleaf", "f32[2, 3] requires_grad", "f32[] requires_grad").joint.segments
    found = [(n, segment) for segment in segments for n in segment.saving if UpdatedInput(0) in n.values]
    ((nodes, segment),) = found
    assert [tangent.of for k, tangent in enumerate(segment.tangents) if nodes.tangent_mask >> k & 1] == [UpdatedInput(0)]
    assert {gradient.of for k, gradient in enumerate(segment.gradients) if nodes.gradient_mask >> k & 1} == {
        Primal(0),
        Primal(1),
    }
