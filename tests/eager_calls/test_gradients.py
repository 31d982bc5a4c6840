"""Gradients of islands, and gradients of gradients, in programs that put them in unusual places."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from tests.eager_calls.functions import ISLANDS, NumpySin, exponential, leaf

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


@aotgrad.island
def product(x, y):
    return x.sin() * y


OVERLAPPING = {
    "expanded": lambda x: product(x.expand(4, 3), x).exp(),
    "an expanded slice": lambda x: product(x[::2].expand(3, 2), x[:2]).t(),
    "a sum that is expanded": lambda x: product(x, x.cos().sum().expand(3)),
    "unfolded": lambda x: exponential(x.cos().unfold(0, 2, 1)).sin(),
    "strided": lambda x: exponential(x.as_strided((3, 2), (1, 0))),
    "a function in NumPy": lambda x: NumpySin.apply(x.expand(4, 3)),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OVERLAPPING)
def test_elements_of_an_argument_that_share_memory_have_gradients_of_their_own(name, dynamic, backend):
    function = OVERLAPPING[name]
    run = aotgrad.aot_function(function, backend, dynamic=dynamic, options=ISLANDS)
    assert_same_derivatives(run, function, 1 if "NumPy" in name else 2)


def assert_same_derivatives(run, function, order):
    """Compares a result and its derivatives; each element of the result has another weight."""
    torch.testing.assert_close(*(derivatives(each, order) for each in (function, run)))


def derivatives(function, order):
    x = leaf(3).detach().double().requires_grad_()
    results = [function(x)]
    for _ in range(order):
        value = results[-1].sin()
        weighted = (value * torch.linspace(1, 2, value.numel(), dtype=value.dtype).view(value.shape)).sum()
        results += torch.autograd.grad(weighted, x, create_graph=order > 1)
    return results
