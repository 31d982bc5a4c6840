"""Random ops with a `torch.Generator` of their own: eager's numbers, and eager's state of the generator afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.errors import CaptureError
from tests.device import default_generator, new_generator

from .against_eager import COMPILERS, assert_matches, compiled

CLOSED_OVER = new_generator()

OPS: dict[str, Callable[[Tensor, torch.Generator], Any]] = {
    "bernoulli": lambda x, g: torch.bernoulli(x.sigmoid(), generator=g) * x,
    "bernoulli_": lambda x, g: (x * 1).bernoulli_(0.3, generator=g) * x,
    "binomial": lambda x, g: torch.binomial(x.detach().abs().round(), x.detach().sigmoid(), generator=g) * x,
    "cauchy_": lambda x, g: x.detach().clone().cauchy_(generator=g) * x,
    "exponential_": lambda x, g: (x * 2).exponential_(generator=g) * x,
    "geometric_": lambda x, g: (x * 2).geometric_(0.5, generator=g) * x,
    "log_normal_": lambda x, g: (x * 2).log_normal_(generator=g) * x,
    "multinomial": lambda x, g: x[torch.multinomial(x.detach().sigmoid(), 2, generator=g)] * x.sum(),
    "normal of numbers": lambda x, g: torch.normal(0.0, 1.0, (5,), generator=g) * x,
    "normal of tensors": lambda x, g: torch.normal(x, x.exp(), generator=g) * x,
    "normal_": lambda x, g: (x * 2).normal_(generator=g) * x,
    "normal_ of a row": lambda x, g: torch.zeros(4, 5).index_fill(0, torch.tensor(0), 1.0)[1].normal_(generator=g) * x,
    "out": lambda x, g: torch.rand(5, generator=g, out=torch.empty(5)) * x,
    "poisson": lambda x, g: torch.poisson(x.detach().abs(), generator=g) * x,
    "rand": lambda x, g: torch.rand(5, generator=g) * x,
    "randint": lambda x, g: torch.randint(0, 9, (5,), generator=g) * x,
    "randn": lambda x, g: torch.randn(x.shape, generator=g, dtype=torch.float64) * x,
    "random_": lambda x, g: torch.empty(5).random_(10, generator=g) * x,
    "randperm": lambda x, g: x[torch.randperm(5, generator=g)] * x,
    "uniform_ of a column": lambda x, g: (x.detach().expand(3, 5).clone()[:, 1].uniform_(generator=g)).sum() * x,
    "kaiming_uniform_": lambda x, g: nn.init.kaiming_uniform_(torch.empty(3, 5), generator=g) @ x,
}


def outcome(function: Callable, seed: int, *others: torch.Generator, order: int = 1) -> list[Tensor]:
    """The result, gradients, and the state of each generator after the call and after the backward."""
    torch.manual_seed(seed)
    own = new_generator().manual_seed(seed + 1)
    x = torch.randn(5, requires_grad=True)
    CLOSED_OVER.manual_seed(seed + 2)
    generators = (own, *others)
    states = (*generators, CLOSED_OVER, default_generator())
    y = function(x, *generators)
    found = [y.detach(), *(each.get_state() for each in states)]
    (first,) = torch.autograd.grad(y.exp().sum(), x, create_graph=order == 2)
    found.append(first.detach())
    if order == 2:
        found += torch.autograd.grad(first.square().sum(), x)
    return [*found, *(each.get_state() for each in states)]


@pytest.mark.parametrize("backend", COMPILERS)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_random_ops(op: Callable, backend: str) -> None:
    """One plan serves every generator in the same place."""
    under_test: Any = compiled(op, backend)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*ran eagerly")
        for seed in (1, 2, 3):
            assert_matches(outcome(under_test, seed), outcome(op, seed), backend)
    assert len(under_test.plans()) == 1


def two_generators(x, g):
    y = torch.randn(5, generator=CLOSED_OVER) * torch.rand(5, generator=g) * torch.rand(5) * x
    return y + torch.rand(5, generator=CLOSED_OVER) * torch.randn(5, generator=g)


def sampled(x, g):
    return (torch.bernoulli(x.sigmoid(), generator=g) * x).sin() * torch.randn(5, generator=g)


@pytest.mark.usefixtures("eagers_numbers")
@pytest.mark.parametrize("options", [{}, {"memory_budget": 0.0}, {"partitioner": "save_all"}], ids=str)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("function", [two_generators, sampled])
def test_what_is_drawn_again(halves, function: Callable, order: int, options: dict[str, Any]) -> None:
    """With a budget, and in a gradient of a gradient: redraws from the same state, without advancing a generator."""
    under_test: Any = aotgrad.aot_function(function, halves, options=options)
    for seed in (1, 2):
        found, wanted = outcome(under_test, seed, order=order), outcome(function, seed, order=order)
        assert_matches(found, wanted, halves, close="" if order == 1 else "eager sums in another order")
    assert len(under_test.plans()) == 1


def test_a_budget_draws_again(halves) -> None:
    """The numbers are larger than the state of a generator."""

    def function(x, g):
        return (torch.bernoulli(x.sigmoid(), generator=g) * x).sin() * torch.rand(5000, generator=g)

    def run(function):
        generator = new_generator().manual_seed(3)
        x = torch.linspace(-1, 1, 5000).requires_grad_()
        y = function(x, generator)
        state = generator.get_state()
        return [y, *torch.autograd.grad(y.sum(), x), state, generator.get_state()]

    under_test: Any = aotgrad.aot_function(function, halves, options={"memory_budget": 0.0})
    assert_matches(run(under_test), run(function), halves)
    assert "aotgrad_random.bernoulli" in under_test.plans()[0].executable.partition.backward.module.code


def test_symbolic_sizes(halves) -> None:
    def function(x, g):
        return x * torch.rand(x.shape, generator=g) + torch.randn(x.shape[0] * 2, generator=g)[: x.shape[0]]

    under_test = aotgrad.aot_function(function, halves, dynamic=True)
    for size in (3, 5, 40):
        results = []
        for each in (under_test, function):
            generator = new_generator().manual_seed(size)
            results.append([each(torch.ones(size), generator), generator.get_state()])
        assert_matches(*results, halves)
    assert len(under_test.plans()) == 1


def test_generators_that_are_one(halves) -> None:
    """The same generator passed twice, or also closed over: each draw advances all of them."""

    def function(x, g, h):
        return torch.rand(5, generator=g) * torch.rand(5, generator=h) * torch.rand(5, generator=CLOSED_OVER) * x

    under_test = aotgrad.aot_function(function, halves)
    g, h = new_generator(), new_generator()
    for pair in ((g, h), (g, g), (CLOSED_OVER, h), (h, CLOSED_OVER), (CLOSED_OVER, CLOSED_OVER), (h, g)):
        results = []
        for each in (under_test, function):
            for seed, generator in enumerate((g, h, CLOSED_OVER)):
                generator.manual_seed(seed)
            drawn = each(torch.ones(5), *pair)
            results.append([drawn, *(generator.get_state() for generator in (g, h, CLOSED_OVER))])
        assert_matches(*results, halves)


@pytest.mark.usefixtures("eagers_numbers")
def test_no_generator_and_the_default_one(halves) -> None:
    def function(x, g):
        return torch.rand(5, generator=g) * x

    under_test: Any = aotgrad.aot_function(function, halves)
    own = new_generator()
    for generator in (None, default_generator(), own, None, default_generator(), own):
        results = []
        for each in (under_test, function):
            torch.manual_seed(3)
            own.manual_seed(4)
            results.append([each(torch.ones(5), generator), default_generator().get_state(), own.get_state()])
        assert_matches(*results, halves)
    assert len(under_test.plans()) == 3


class Sampler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.generator = nn.Linear(5, 5), new_generator()

    def forward(self, x):
        return self.linear(x) * torch.rand(5, generator=self.generator)


def test_a_generator_of_a_module(halves) -> None:
    """Another generator in its place needs another plan."""
    model = Sampler()
    under_test: Any = aotgrad.aot_module(model, halves)
    for step in range(4):
        if step == 2:
            model.generator = new_generator()
        results = []
        for each in (under_test, lambda x: Sampler.forward(model, x)):
            model.generator.manual_seed(step)
            results.append([each(torch.ones(5)), model.generator.get_state()])
        assert_matches(*results, halves)
    assert len(under_test.plans()) == 2


def test_an_input_that_is_filled(halves) -> None:
    def function(x):
        return x.random_(100, generator=CLOSED_OVER)

    under_test = aotgrad.aot_function(function, halves)
    for seed in (1, 2):
        results = []
        for each in (under_test, function):
            CLOSED_OVER.manual_seed(seed)
            x = torch.zeros(5)
            assert each(x) is x and x._version == 1
            results.append([x, CLOSED_OVER.get_state()])
        assert_matches(*results, halves)


@pytest.mark.parametrize("backend", COMPILERS)
def test_several_generators(backend: str) -> None:
    """Inductor has its own random numbers only for the default generator."""

    def function(x, g):
        y = (x * torch.randn(5, generator=g)).sin() + torch.bernoulli(x.sigmoid(), generator=g)
        return y + x.detach().clone().normal_(generator=g) * torch.rand(5, generator=CLOSED_OVER)

    under_test = compiled(function, backend)
    for seed in (1, 2):
        assert_matches(outcome(under_test, seed), outcome(function, seed), backend)


@pytest.mark.parametrize("how", ["argument", "closure"])
@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_behind_dynamo(backend: str, how: str) -> None:
    """Dynamo breaks the graph there."""

    def function(x, g):
        y = (x * 2).exp()
        return y * torch.rand(5, generator=g if how == "argument" else CLOSED_OVER) + 1

    torch._dynamo.reset()
    under_test = torch.compile(function, backend=backend)
    for seed in (1, 2):
        for actual, wanted in zip(outcome(under_test, seed), outcome(function, seed), strict=True):
            torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev], ids=["grad", "jacrev"])
def test_under_transforms(halves, transform: Callable) -> None:
    def function(x):
        return (x * torch.rand(5, generator=CLOSED_OVER)).sin().sum()

    results = []
    for each in (aotgrad.aot_function(function, halves), function):
        CLOSED_OVER.manual_seed(1)
        results.append([transform(each)(torch.ones(5)), CLOSED_OVER.get_state()])
    torch.testing.assert_close(*results)


class NoisyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, generator):
        ctx.generator = generator
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand(5, generator=ctx.generator), None


def makes_one(x, g):
    return x * torch.rand(5, generator=new_generator().manual_seed(3))


def seeds_an_argument(x, g):
    return x * torch.rand(5, generator=g.manual_seed(3))


def seeds_what_it_closed_over(x, g):
    CLOSED_OVER.manual_seed(3)
    return x * torch.rand(5, generator=CLOSED_OVER)


def reads_a_state(x, g):
    return x * torch.rand(5, generator=g), g.get_state()


def draws_in_the_backward(x, g):
    return NoisyGradient.apply(x, g)


def draws_in_a_checkpoint(x, g):
    return checkpoint(lambda x: torch.bernoulli(x.sigmoid(), generator=g) * x, x, use_reentrant=False)


REFUSED = (makes_one, seeds_an_argument, seeds_what_it_closed_over, reads_a_state)
REFUSED += (draws_in_the_backward, draws_in_a_checkpoint)


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_is_refused(halves, function: Callable) -> None:
    """It raises at every call; the state of the passed generator is unchanged."""
    under_test, generator = aotgrad.aot_function(function, halves), new_generator()
    before = generator.get_state()
    for _ in range(2):
        with pytest.raises(CaptureError, match="enerator"):
            under_test(torch.ones(5, requires_grad=True), generator)
    assert torch.equal(generator.get_state(), before)


def test_the_report_names_the_state() -> None:
    report = str(aotgrad.explain(sampled)(torch.ones(5, requires_grad=True), new_generator()))
    assert "state of generator 0" in report
