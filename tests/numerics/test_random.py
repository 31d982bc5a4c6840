"""Random operations: eager's numbers, drawn once, and the same in the backward."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from torch import nn
from torch._inductor import config

import aotgrad
from aotgrad.errors import CaptureError, HigherOrderError
from tests.device import default_generator

from .against_eager import (
    ALL,
    AOT,
    DYNAMO_BACKENDS,
    EXACT,
    THROUGH_INDUCTOR,
    assert_like_eager,
    assert_matches,
    compiled,
    leaf,
    plain,
)
from .cases import Case, Cases

CASES = Cases()


@CASES.add(lambda: (leaf(4, 8),))
def dropout(x):
    return nn.functional.dropout(x, 0.5)


@CASES.add(lambda: (leaf(4, 8),))
def dropout_in_evaluation(x):
    return nn.functional.dropout(x * 2, 0.5, training=False), nn.functional.dropout(x, 0.5, training=False)


@CASES.add(lambda: (leaf(4, 8),))
def dropout_of_everything(x):
    return nn.functional.dropout(x, 1.0), nn.functional.dropout(x, 0.0)


@CASES.add(lambda: (leaf(4, 8),))
def dropout_of_cheap_operations(x):
    return nn.functional.dropout((x * 2).relu(), 0.3).sin()


@CASES.add(lambda: (leaf(4, 8),))
def several_dropouts(x):
    y = nn.functional.dropout(x.sin(), 0.3)
    return nn.functional.dropout(y.exp(), 0.6) + nn.functional.dropout(y, 0.1)


@CASES.add(lambda: (leaf(2, 4, 5, 5),))
def dropout_of_channels(x):
    return nn.functional.dropout2d(x, 0.5), nn.functional.alpha_dropout(x, 0.2, training=True)


@CASES.add(lambda: (leaf(4, 8),), without_dynamo="the functional in-place dropout breaks the graph for a leaf")
def dropout_in_place(x):
    return nn.functional.dropout(x * 1, 0.5, inplace=True).sin()


@CASES.add(lambda: (leaf(4, 8),))
def noise_like_the_input(x):
    return x + torch.randn_like(x), x * torch.rand_like(x)


@CASES.add(lambda: (leaf(4, 8),))
def noise_of_a_given_shape(x):
    return x * torch.randn(4, 8), torch.rand(3), torch.randint(0, 10, (5,)), torch.randperm(6)


@CASES.add(lambda: (leaf(4, 8),))
def reparametrised_sample(mean):
    return mean + torch.randn_like(mean) * (mean * 0.5).exp()


@CASES.add(lambda: (leaf(4, 8),))
def drawn_in_place(x):
    return x * torch.empty(4, 8).normal_(), x * torch.empty(4, 8).uniform_(0, 1), x * torch.zeros(4, 8).bernoulli_(0.5)


@CASES.add(lambda: (plain(4, 8),))
def input_filled_with_noise(x):
    x.normal_()
    return x * 2


@CASES.add(lambda: (plain(8, 60)[:, ::3],))
def input_with_gaps_filled_with_noise(x):
    x.uniform_(-1, 2)
    return x * 2, x.view_as(x)


@CASES.add(lambda: (leaf(8, 60),))
def columns_filled_with_noise(x):
    y = x * 2
    y[:, ::3].uniform_()
    return y.t()[::2].sin()


@CASES.add(lambda: (leaf(4, 8).sigmoid(),))
def bernoulli_of_probabilities(p):
    return torch.bernoulli(p.detach()) * p


@CASES.add(lambda: (leaf(4, 8),))
def multinomial_of_weights(x):
    return torch.multinomial(torch.softmax(x, -1).detach(), 2), x.sin()


@CASES.add(lambda: (leaf(4, 8),))
def randomised_leaky_relu(x):
    return nn.functional.rrelu(x, training=True)


@CASES.add(lambda: (leaf(2, 2, 4, 8),))
def attention_with_dropout(x):
    return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3)


@CASES.add(lambda: (leaf(4, 8),))
def gumbel_softmax(x):
    return nn.functional.gumbel_softmax(x, hard=True)


@CASES.add(lambda: (leaf(4, 8),), around=torch.no_grad)
def dropout_with_no_grad_around(x):
    return nn.functional.dropout(x, 0.5)


@CASES.parametrize()
def test_random_operations(case: Case, backend: str) -> None:
    case.check(backend)


@pytest.mark.parametrize("partitioner", ["min_cut", "save_all"])
def test_dropout_is_saved_and_not_drawn_again(halves, partitioner: str) -> None:
    """The same mask in the backward: the gradient is zero exactly where the output is."""
    partition = {"min_cut": aotgrad.min_cut_rematerialization_partition, "save_all": aotgrad.default_partition}
    function = aotgrad.aot_function(
        lambda x: nn.functional.dropout(x.relu() + 1, 0.5), halves, partition_fn=partition[partitioner]
    )
    x = torch.ones(1000, requires_grad=True)
    y = function(x)
    state = default_generator().get_state()
    y.sum().backward()
    assert torch.equal(y == 0, x.grad == 0)
    assert torch.equal(default_generator().get_state(), state), "the backward drew random numbers"


@pytest.mark.usefixtures("eagers_numbers")
@pytest.mark.parametrize("backend", ALL)
def test_the_generator_is_left_as_eager_leaves_it(backend: str) -> None:
    """Tracing draws nothing, and the call draws as many numbers as eager."""

    def function(x):
        return nn.functional.dropout(x, 0.5) * torch.randn(())

    def next_number(function):
        torch.manual_seed(5)
        function(torch.ones(7))
        return torch.rand(()).item()

    assert next_number(compiled(function, backend)) == next_number(function)


def test_a_compiler_may_draw() -> None:
    """Inductor draws the inputs of kernels that it times."""
    drawn = []

    def draw_and_compile(module, inputs):
        drawn.append((torch.rand(1), torch.rand(1, device=default_generator().device), random.random()))
        return module

    class DrawingPass:
        name = "drawing"

        def apply(self, graph):
            draw_and_compile(graph, ())
            return graph

    def step(function):
        torch.manual_seed(5)
        random.seed(5)
        x = torch.ones(7, requires_grad=True)
        y = function(x)
        following = torch.randn_like(y), random.random()
        (gradient,) = torch.autograd.grad(y, x, following[0])
        return y, gradient, following[1], torch.randn_like(y), random.random()

    function = lambda x: (x * torch.randn(7)).sin()  # noqa: E731
    compilers = draw_and_compile, draw_and_compile
    under_test = aotgrad.aot_function(function, *compilers, options={"joint_passes": [DrawingPass()]})
    for actual, expected in zip(step(under_test), step(function), strict=True):
        assert torch.equal(actual, expected) if isinstance(expected, torch.Tensor) else actual == expected
    assert len(drawn) == 3


@pytest.mark.parametrize("backend", THROUGH_INDUCTOR)
def test_inductor_uses_one_mask_for_forward_and_backward(backend: str) -> None:
    """With Inductor's own random numbers."""
    function = compiled(lambda x: nn.functional.dropout(x.sin(), 0.5), backend)
    x = torch.ones(1000, requires_grad=True)
    y = function(x)
    y.sum().backward()
    assert torch.equal(y == 0, x.grad == 0)
    assert 300 < (y == 0).sum() < 700


@pytest.mark.parametrize("backend", ALL)
def test_every_call_draws_other_numbers(backend: str) -> None:
    function = compiled(lambda x: nn.functional.dropout(x, 0.5), backend)
    x = torch.ones(100)
    assert not torch.equal(function(x), function(x))


@pytest.mark.parametrize("backend", DYNAMO_BACKENDS)
def test_a_model_with_dropout_in_training_and_evaluation(backend: str) -> None:
    """Each of the two has its own plan."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    for training in (True, False, True):
        model.train(training)
        assert_like_eager(model, lambda: (plain(3, 4),), backend)


def checkpointed(region, x):
    return torch.utils.checkpoint.checkpoint(region, x, use_reentrant=False)


def two_layers(x, w):
    """Two regions, and dropout behind them."""
    for _ in range(2):
        x = checkpointed(lambda x: nn.functional.dropout((x * w).exp(), 0.5).sin(), x)
    return nn.functional.dropout(x, 0.3) * w


def regions_within_a_region(x, w):
    def inner(x):
        return nn.functional.dropout(x * w, 0.3).sin() + torch.rand_like(x)

    return checkpointed(lambda x: nn.functional.dropout(checkpointed(inner, x).cos() * w, 0.5).tanh(), x)


def a_seldom_used_region(x, w):
    """An op that a backward does not recompute draws nothing."""
    return checkpointed(lambda x: nn.functional.dropout(x * w, 0.5).exp(), x), nn.functional.dropout(x * w, 0.2).cos()


REGIONS = (two_layers, regions_within_a_region, a_seldom_used_region)


@pytest.mark.usefixtures("eagers_numbers")
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("function", REGIONS, ids=lambda function: function.__name__)
def test_dropout_in_a_checkpoint(function, backend: str, order: int) -> None:
    """The backward redraws the numbers of the forward, and leaves the generator unchanged."""

    def run(function):
        torch.manual_seed(0)
        arguments = [torch.randn(20, requires_grad=True) for _ in range(2)]
        results = function(*arguments)
        results = results if isinstance(results, tuple) else (results,)
        found = [*results, default_generator().get_state()]
        for result in results:
            first = torch.autograd.grad(result.sum(), arguments, create_graph=order == 2, retain_graph=True)
            found += [*first, default_generator().get_state()]
            if order == 2:
                loss = sum(gradient.square().sum() for gradient in first)
                found += [*torch.autograd.grad(loss, arguments, retain_graph=True), default_generator().get_state()]
        return found

    under_test, rtol = compiled(function, backend), (0 if order == 1 else 1e-6) if backend in EXACT else 1e-4
    for _ in range(2):
        for actual, wanted in zip(run(under_test), run(function), strict=True):
            torch.testing.assert_close(actual, wanted, rtol=rtol, atol=0 if rtol == 0 else 1e-5)


@pytest.mark.parametrize("backend", THROUGH_INDUCTOR)
def test_derivatives_have_the_settings_of_the_forward(backend: str) -> None:
    """They draw eager's numbers once more if the forward drew eager's, though the setting is back at its default."""

    def function(x):
        return nn.functional.dropout(x.exp(), 0.5).sin()

    def run(function):
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 20).requires_grad_()
        with config.patch(fallback_random=True):
            y = function(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return [y, first, second, *torch.autograd.grad(second.sum(), x)]

    assert_matches(run(compiled(function, backend)), run(function), backend)


@pytest.mark.parametrize("backend", THROUGH_INDUCTOR)
def test_inductors_mask_in_a_checkpoint(backend: str) -> None:
    def function(x, w):
        return checkpointed(lambda x: nn.functional.dropout(x * w, 0.5), x)

    x, w = torch.ones(1000, requires_grad=True), torch.ones(1000)
    y = compiled(function, backend)(x, w)
    y.sum().backward()
    assert torch.equal(x.grad, y) and 300 < (y == 0).sum() < 700


class NoisyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        torch.rand(2)
        return gradient + torch.rand_like(gradient)


@pytest.mark.usefixtures("eagers_numbers")
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("wanted", [(0, 1), (0,), (1,)], ids=str)
def test_a_backward_that_draws(halves, wanted: tuple[int, ...], retain: bool) -> None:
    """It draws when eager's node runs: not for a gradient that does not pass through the node."""

    def function(x, w):
        return NoisyGradient.apply(x).sin(), (NoisyGradient.apply(w) * x).exp()

    def run(function):
        torch.manual_seed(0)
        arguments = [torch.randn(3, requires_grad=True) for _ in range(2)]
        first, second = function(*arguments)
        leaves, found = [arguments[k] for k in wanted], []
        for loss in (first.sum() + second.sum(), *([second.sum(), second.sum()] if retain else [])):
            found += torch.autograd.grad(loss, leaves, retain_graph=retain)
            found.append(default_generator().get_state())
        return found

    under_test = aotgrad.aot_function(function, halves)
    for _ in range(2):
        assert_matches(run(under_test), run(function), halves)


def test_a_gradient_of_one_that_draws_is_refused(halves) -> None:
    """It would draw a second time, and other numbers."""
    x = torch.ones(3, requires_grad=True)
    y = aotgrad.aot_function(lambda x: NoisyGradient.apply(x).sin(), halves)(x)
    with pytest.raises(HigherOrderError, match="the backward of the compiled function draws random numbers"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.parametrize("backend", (*AOT, "aot_inductor"))
def test_a_generator_that_is_saved_and_left_as_it_was(backend: str) -> None:
    """A function that draws nothing may save, restore and read the state."""

    def function(x):
        state = torch.get_rng_state()
        with torch.random.fork_rng(devices=()):
            y = x.sin()
        torch.set_rng_state(state)
        return nn.functional.dropout(y, 0.5)

    assert_like_eager(function, lambda: (leaf(4, 8),), backend)


@pytest.mark.usefixtures("eagers_numbers")
def test_the_same_numbers_drawn_twice(halves) -> None:
    """Draws from a state that the function has restored; the final state is eager's."""

    def function(x):
        with torch.random.fork_rng(devices=()):
            first = torch.rand_like(x).sin()
        return first * x, torch.rand_like(x).cos()

    def run(function):
        torch.manual_seed(0)
        return *function(torch.ones(5)), torch.rand(2)

    for _ in range(2):
        assert_matches(run(aotgrad.aot_function(function, halves)), run(function), halves)


def draws_and_goes_back(x):
    with torch.random.fork_rng(devices=()):
        return x + torch.rand_like(x)


def seeds_for_a_while(x):
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(7)
        return x + torch.rand_like(x)


def seeds_afterwards(x):
    y = x + torch.rand_like(x)
    torch.manual_seed(torch.initial_seed())
    return y


def seeds_by_chance(x):
    torch.seed()
    return x + torch.rand_like(x)


def returns_the_state(x):
    return x * 2, torch.get_rng_state()


def computes_with_the_state(x):
    return x * torch.get_rng_state()[:3]


def computes_with_the_seed(x):
    return x + torch.initial_seed()


READERS = (returns_the_state, computes_with_the_state, computes_with_the_seed)
SETTERS = (draws_and_goes_back, seeds_for_a_while, seeds_afterwards, seeds_by_chance)


@pytest.mark.parametrize("function", [*SETTERS, *READERS], ids=lambda function: function.__name__)
def test_a_function_that_sets_the_generator_is_refused(halves, function) -> None:
    """The state is unchanged afterwards."""
    before = default_generator().get_state()
    with pytest.raises(CaptureError, match="the function seeds the random generator or sets its state"):
        aotgrad.aot_function(function, halves)(torch.ones(3))
    assert torch.equal(default_generator().get_state(), before)
    assert torch.random.default_generator is torch.default_generator


def test_another_thread_may_seed_while_a_function_is_traced(halves) -> None:
    seed = torch.initial_seed()

    def function(x):
        thread = threading.Thread(target=torch.manual_seed, args=(seed,))
        thread.start()
        thread.join()
        return x + torch.rand_like(x)

    aotgrad.aot_function(function, halves)(torch.ones(3))
