"""What is told of two runs that differ."""

from __future__ import annotations

import math

import torch

from aotgrad.conformance.differences import different_values, largest_error
from aotgrad.conformance.observe import Observation


def observed(**values):
    return Observation({}, values)


def test_the_largest_error_comes_first():
    wanted = observed(output=torch.ones(3), gradient=torch.full((3,), 100.0), other=torch.ones(2), same=torch.ones(1))
    actual = observed(
        output=torch.ones(3) + 1e-3, gradient=torch.full((3,), 150.0), other=torch.ones(2) * 1.1, same=torch.ones(1)
    )
    names = [text.partition(":")[0] for text in different_values(actual, wanted)]
    assert names == ["gradient", "other", "output"]


def test_what_is_missing_comes_before_errors():
    wanted, actual = observed(a=torch.ones(3), b=torch.ones(3)), observed(a=torch.ones(3) * 2, b=None)
    assert next(different_values(actual, wanted)) == "b is None, not a tensor of [3]"


def test_a_tolerance_multiplies_what_is_allowed():
    wanted, actual = observed(a=torch.ones(3)), observed(a=torch.ones(3) * 1.0005)
    assert len(list(different_values(actual, wanted))) == 1 and not list(different_values(actual, wanted, 100))
    whole = observed(a=torch.ones(3, dtype=torch.int64)), observed(a=torch.zeros(3, dtype=torch.int64))
    assert len(list(different_values(*whole, 1e9))) == 1


def test_errors_of_tensors_that_cannot_be_subtracted_are_infinite():
    one = torch.ones(2)
    for other in (torch.ones(3), torch.ones(2, dtype=torch.float64), torch.ones(2).to_sparse(), one * math.nan):
        assert largest_error(other, one) == math.inf
    assert largest_error(torch.zeros(0), torch.zeros(0)) == math.inf and largest_error(one * 1.5, one) == 0.5
