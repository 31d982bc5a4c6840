"""Random training steps, beside eager. A longer campaign: `python scripts/conformance/steps.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.in_pieces import IN_PIECES
from tests.islands import ISLANDS
from tests.training_step.programs import compare, draw, reduced

NUMBERS = range(1_000_000, 1_000_030)


@pytest.mark.parametrize("backend", ["eager", ISLANDS], ids=["eager", "islands"])
@pytest.mark.parametrize("number", NUMBERS)
def test_random_steps_with_eager_halves(number, backend):
    assert compare(draw(number), backend) is None


@pytest.mark.parametrize("backend", ["inductor", IN_PIECES], ids=["inductor", "pieces"])
@pytest.mark.parametrize("number", NUMBERS[:3])
def test_random_steps_through_inductor(number, backend):
    assert compare(draw(number), backend) is None


def test_a_program_that_fails_is_reduced():
    program = draw(NUMBERS[0])
    broken = replace(program, body=(*program.body[:-1], "assert not torch.compiler.is_compiling()", program.body[-1]))
    smallest = reduced(broken, lambda candidate: "is_compiling" in str(candidate))
    assert len(smallest.rows) == 1 and len(smallest.body) == 1 and str(smallest).count("pass") == 1
