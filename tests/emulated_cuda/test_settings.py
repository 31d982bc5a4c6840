"""A gradient of a gradient runs the function on the default device of its call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch

import aotgrad
from aotgrad.backends.base import AnyBackend

DEVICES = ("cpu", "cuda")


def with_a_constant(x):
    return (x * torch.tensor([1.1, 2.2, 3.3])).exp()


def second(function: Callable, of_call: str, of_backward: str) -> torch.Tensor:
    with torch.device(of_call):
        x = torch.ones(3, requires_grad=True)
        result = function(x)
    with contextlib.nullcontext() if of_backward == of_call else torch.device(of_backward):
        (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]


@pytest.mark.parametrize("backend", [aotgrad.nop, "inductor"], ids=["nop", "inductor"])
@pytest.mark.parametrize("of_backward", DEVICES)
@pytest.mark.parametrize("of_call", DEVICES)
def test_the_default_device_is_that_of_the_call(of_call: str, of_backward: str, backend: AnyBackend):
    expected = second(with_a_constant, of_call, of_backward)
    found = second(aotgrad.aot_function(with_a_constant, backend), of_call, of_backward)
    torch.testing.assert_close(found, expected)
