"""Floats as whole numbers."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from aotgrad.graph.floats import float_of_halves, halves_of_float


@given(st.floats())
def test_a_float_is_its_halves(number: float) -> None:
    halves = halves_of_float(number)
    found = float_of_halves(*halves).item()
    assert math.isnan(found) == math.isnan(number)
    assert math.copysign(1, found) == math.copysign(1, number) and (
        found == number or math.isnan(found) == math.isnan(number)
    )
    assert all(2 <= half < 2**33 for half in halves)


def test_it_is_a_number_of_double_precision() -> None:
    assert torch.equal(float_of_halves(*halves_of_float(0.1)), torch.tensor(0.1, dtype=torch.float64))
