"""Random numbers of Python and NumPy that a traced function draws: those that eager draws, in each call."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

import aotgrad


def straight(x):
    return x * random.random() + float(np.random.rand())


def branch(x):
    """It is traced twice: the first trace does not know the value."""
    number, other = random.random(), float(np.random.rand())
    return x * number if x.sum() > 0 else x * other


def untraceable(x):
    return x * random.random() if x.data_ptr() else x


def hook(x):
    y = x.sin()
    y.register_hook(lambda gradient: gradient * random.random())
    return y * 2


def numbers(function: Callable) -> list[float]:
    """Results and gradients of three calls, and what is drawn afterwards."""
    random.seed(0), np.random.seed(0)
    found = []
    for _ in range(3):
        x = torch.ones(1, requires_grad=True)
        result = function(x)
        result.backward()
        found += [result.item(), x.grad.item()]
    return [*found, random.random(), float(np.random.rand())]


@pytest.mark.parametrize("function", [straight, branch, untraceable, hook], ids=lambda each: each.__name__)
@pytest.mark.filterwarnings("ignore:untraceable runs eagerly")
def test_each_call_draws_as_eager_does(function):
    compiled = aotgrad.aot_function(function, "eager", options={"on_error": "eager"})
    assert numbers(compiled) == pytest.approx(numbers(function), rel=1e-6)


def test_a_trace_that_fails_draws_nothing():
    compiled = aotgrad.aot_function(untraceable, "eager")
    random.seed(0)
    with pytest.raises(aotgrad.errors.CaptureError):
        compiled(torch.ones(1))
    drawn = random.random()
    random.seed(0)
    assert drawn == random.random()
