"""Gradients of islands, and gradients of gradients, in programs that put them in unusual places."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.errors import HigherOrderError
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
    assert_same_derivatives(run, function, 1 if "NumPy" in name else 3 if backend == "eager" else 2)


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


@aotgrad.island
def pieces(x):
    return x.sin().unbind(0)


@aotgrad.island
def several(x):
    return x.sin(), x * 2


def with_a_result_of_the_island(x):
    result = exponential(x.cos())
    return torch.stack([result * x.cos(), result])


def with_an_argument_of_the_island(x):
    result, argument = several(x.cos())
    return result * argument


def with_parts_of_a_result(x):
    first, second, _ = pieces(x.cos())
    return first * second


def with_a_gradient_inside(x):
    return torch.autograd.grad(exponential(x).sum(), x, create_graph=True)[0] * x


def in_a_loop(x):
    for _ in range(3):
        x = exponential(x.sin())
    return x


def in_regions_of_a_loop(x):
    for _ in range(2):
        x = checkpoint(lambda y: exponential(y.sin()), x, use_reentrant=False)
    return x


def in_nested_regions(x):
    return checkpoint(lambda y: in_regions_of_a_loop(y).cos(), x, use_reentrant=False)


PROGRAMS = {
    "a result that is expanded": lambda x: exponential(x.cos()).expand(4, 3),
    "a result beside the island": with_a_result_of_the_island,
    "an argument beside a result": with_an_argument_of_the_island,
    "parts of a result": with_parts_of_a_result,
    "a gradient inside": with_a_gradient_inside,
    "a loop": in_a_loop,
    "a region": lambda x: checkpoint(lambda y: exponential(y.cos()).exp(), x, use_reentrant=False),
    "a function in NumPy in a region": lambda x: checkpoint(lambda y: NumpySin.apply(y.cos()).exp(), x, use_reentrant=False),
    "an island that is a region": lambda x: checkpoint(exponential, x, use_reentrant=False).sin(),
    "regions in a loop": in_regions_of_a_loop,
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_gradients(name, backend):
    run = aotgrad.aot_function(PROGRAMS[name], backend, options=ISLANDS)
    assert_same_derivatives(run, PROGRAMS[name], 2 if backend == "inductor" else 3)


def test_a_gradient_of_a_gradient_through_nested_regions_is_an_error():
    run = aotgrad.aot_function(in_nested_regions, "eager", options=ISLANDS)
    with pytest.raises(HigherOrderError, match="a gradient of a gradient needs the result of"):
        derivatives(run, 2)


def test_gradients_of_gradients_through_two_results():
    """Each result has a backward of its own; the one of the product needs no autograd graph for its gradient alone."""

    def function(x):
        result = exponential(x.cos())
        return result * x, result

    found = []
    for call in (function, aotgrad.aot_function(function, "eager", options=ISLANDS)):
        x = leaf(3)
        product, result = call(x)
        (gradient,) = torch.autograd.grad(product.sum(), x, create_graph=True)
        found.append([gradient, *torch.autograd.grad(gradient.sin().sum(), x, create_graph=True), result])
    torch.testing.assert_close(*found)


@pytest.mark.xfail(strict=True, reason="the region is rerun for the gradient and for the result")
def test_runs_of_an_island_in_a_region():
    runs = []

    @aotgrad.island
    def counted(x):
        runs.append(1)
        return x.exp()

    def runs_of(call):
        x = leaf(3)
        result = call(x)
        (gradient,) = torch.autograd.grad(result.sin().sum(), x, create_graph=True)
        runs.clear()
        (gradient.sum() + result.sum()).backward()
        return len(runs)

    def function(x):
        return checkpoint(counted, x, use_reentrant=False).sin()

    run = aotgrad.aot_function(function, "eager", options=ISLANDS)
    runs_of(run)
    assert runs_of(run) == runs_of(function)
