"""Derivatives of a function with symbolic sizes: one plan for all sizes, of each derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import aotgrad
from aotgrad.errors import HigherOrderError
from aotgrad.telemetry.observer import record_stages

Step = Callable[[Callable, int], Sequence[torch.Tensor]]

SIZES = (5, 7, 9, 4, 11)


def leaf(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, dtype=torch.float64, requires_grad=True)


def energy(positions, weight):
    distances = (positions[:, None] - positions[None]).pow(2).sum(-1) + 1
    return (positions @ weight).tanh().sum() + distances.sqrt().sum()


def forces_in_the_loss(function, n):
    positions, weight = leaf(n, 3), leaf(3, 4)
    value = function(positions, weight)
    (force,) = torch.autograd.grad(value, positions, create_graph=True)
    ((force**2).sum() + value**2).backward()
    return value, force, positions.grad, weight.grad


def two_sizes(matrix, vector):
    return (matrix.sin() @ vector).tanh()


def penalty_of_two_sizes(function, n):
    inputs = leaf(n, n + 3), leaf(n + 3)
    gradients = torch.autograd.grad(function(*inputs).sum(), inputs, create_graph=True)
    return *gradients, *torch.autograd.grad(sum((each**2).sum() for each in gradients), inputs)


def with_its_size(x):
    return (x.sin() * x.shape[0] / 3).exp()


def three_times(function, n):
    x = leaf(n)
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    return first, second, *torch.autograd.grad(second.sum(), x)


def mixing(x):
    return x.sin() * x.sum()


def batched_gradients(function, n):
    """The number of batches also changes with each size."""
    x = leaf(n)
    return torch.autograd.grad(function(x), x, torch.eye(n, dtype=torch.float64), is_grads_batched=True)


def gradient_inside(x):
    value = (x.sin() * x).sum()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    return (gradient**2).sum() + value


def gradient_of_a_gradient_inside(function, n):
    x = leaf(n)
    value = function(x)
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    return value, gradient, *torch.autograd.grad((gradient**3).sum(), x)


def two_results(x):
    return x.sin(), x.exp().sum()


def later_from_a_result(function, n):
    """The gradient goes on from a result that the caller still has."""
    x = leaf(n)
    first, second = function(x)
    (gradient,) = torch.autograd.grad(first.sum() * second, x, create_graph=True)
    return torch.autograd.grad((gradient**2).sum(), x)


# Per case: the function, its use, and the number of plans with Dynamo in front and without.
CASES: dict[str, tuple[Callable, Step, int, int]] = {
    "force training": (energy, forces_in_the_loss, 2, 2),
    "two sizes": (two_sizes, penalty_of_two_sizes, 2, 2),
    "third derivatives": (with_its_size, three_times, 3, 3),
    "batched gradients": (mixing, batched_gradients, 2, 2),
    "a gradient inside": (gradient_inside, gradient_of_a_gradient_inside, 5, 2),  # behind Dynamo, the graph is broken
    "results the caller has": (two_results, later_from_a_result, 3, 3),
}


def made_with_dynamo(function: Callable, backend: str = "aotgrad_eager", cache: bool = False) -> Callable:
    torch._dynamo.reset()
    options = {"cache": cache, "min_graph_ops": 0}
    return torch.compile(function, backend=backend, dynamic=True, options=options)


def made_without(function: Callable) -> Callable:
    return aotgrad.aot_function(function, aotgrad.nop, options={"dynamic": True})


def plans_made(function: Callable, compiled: Callable, step: Step, sizes: Sequence[int] = SIZES) -> list[int]:
    """The number of plans for each size, after a comparison with eager, which sums gradients in another order."""
    made = []
    for n in sizes:
        before, results = aotgrad.counters["compilations"], []
        for each in (function, compiled):
            torch.manual_seed(n)
            results.append(step(each, n))
        made.append(aotgrad.counters["compilations"] - before)
        for expected, found in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    return made


def layers(x, a, b, c):
    """Of sizes that are numbers of the function, too, and with a square matrix."""
    n, width = x.shape
    hidden = (x @ a).view(n, -1, 4).tanh().view(n, width)
    return (hidden @ b).tanh() @ c / n


@pytest.mark.parametrize("make", [made_with_dynamo, made_without])
def test_a_derivative_of_symbolic_size_runs_no_product_twice(make: Callable) -> None:
    """The saved values are inputs of the second-order function, as with static sizes; so are those of both orders next."""

    def step(function, n):
        x, *weights = leaf(n, 8), leaf(8, 8), leaf(8, 6), leaf(6, 1)
        (first,) = torch.autograd.grad(function(x, *weights).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        return first, *torch.autograd.grad(second.square().sum(), [x, *weights])

    with record_stages() as stages:
        plans_made(layers, make(layers), step, (5, 7))
    forwards = [stage.text.partition("def backward")[0] for stage in stages if stage.name == "partition"]
    assert len(forwards) == 3 and [text.count("aten.tanh.default(") for text in forwards] == [2, 0, 0]
    assert [text.count("aten.mm.default(") for text in forwards[:2]] == [3, 3]


def test_a_random_mask_of_symbolic_size_is_that_of_the_forward() -> None:
    """It is taken from the forward, and not drawn again."""

    def function(x, w):
        return torch.nn.functional.dropout(x @ w, 0.5).tanh()

    for make in (made_with_dynamo, made_without):
        compiled = make(function)
        for n in (6, 9):
            x, w = leaf(n, 4), leaf(4, 4)
            y = compiled(x, w)
            (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
            mask = (y != 0) * 2.0
            expected = (mask * (1 - (mask * (x @ w)).tanh() ** 2)) @ w.t()
            torch.testing.assert_close(gradient, expected)
            found, wanted = (
                torch.autograd.grad(each.square().sum(), [x, w], retain_graph=True) for each in (gradient, expected)
            )
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", CASES)
def test_one_plan_for_all_sizes_behind_dynamo(name: str) -> None:
    function, step, plans, _ = CASES[name]
    assert plans_made(function, made_with_dynamo(function), step) == [plans, 0, 0, 0, 0]


@pytest.mark.parametrize("name", CASES)
def test_one_plan_for_all_sizes(name: str) -> None:
    function, step, _, plans = CASES[name]
    assert plans_made(function, made_without(function), step) == [plans, 0, 0, 0, 0]


def test_sizes_one_and_zero_have_a_plan_of_their_own() -> None:
    assert plans_made(energy, made_with_dynamo(energy), forces_in_the_loss, (5, 1, 0, 7, 1, 0)) == [2, 2, 2, 0, 0, 0]


@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
def test_one_plan_for_all_sizes_through_inductor() -> None:
    compiled = made_with_dynamo(energy, "aotgrad")
    assert plans_made(energy, compiled, forces_in_the_loss, (5, 7, 9)) == [2, 0, 0]


def test_one_plan_for_all_sizes_from_the_disk_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AOTGRAD_VERIFY", "0")  # looking at the stages needs stages
    plans_made(energy, made_with_dynamo(energy, cache=True), forces_in_the_loss, (5, 7))
    before = aotgrad.counters["cache_hits"]
    assert plans_made(energy, made_with_dynamo(energy, cache=True), forces_in_the_loss) == [1, 0, 0, 0, 0]
    assert aotgrad.counters["cache_hits"] == before + 1


def test_automatic_sizes_have_two_plans_of_each_derivative() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(energy, backend="aotgrad_eager", options={"cache": False})
    assert plans_made(energy, compiled, forces_in_the_loss) == [2, 2, 0, 0, 0]


def test_numbers_that_change_share_the_plan() -> None:
    """A number that is no size of a tensor; Dynamo passes it once a second value occurs."""

    def step(function, n):
        x = leaf(4)
        (gradient,) = torch.autograd.grad(function(x, n).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.sum(), x)

    def function(x, n):
        return (x * n).sin()

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aotgrad_eager", fullgraph=True, options={"cache": False, "min_graph_ops": 0})
    assert plans_made(function, compiled, step, (5, 6, 7, 8)) == [2, 2, 0, 0]


def test_an_input_that_was_changed_since_raises_as_eager() -> None:
    """With numbers in front of the tensors."""

    def function(x, y):
        return (x * y).sum(0).sin()

    for each in (function, made_with_dynamo(function)):
        x, y = leaf(5, 3), leaf(5, 3)
        total = each(x, y).sum()
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(total, x, create_graph=True)


def test_the_old_value_of_a_changed_input_is_refused() -> None:
    """With numbers in front of the tensors; an unneeded value is not missed."""

    def needs(x, y):
        result = (x * y).sin()
        y.mul_(2)
        return result

    def does_not_need(x, y):
        result = x.sin() * 2
        y.mul_(2)
        return result

    x, y = leaf(5), torch.ones(5, dtype=torch.float64)
    with pytest.raises((HigherOrderError, RuntimeError)):
        torch.autograd.grad(made_with_dynamo(needs)(x, y).sum(), x, create_graph=True)
    compiled = made_with_dynamo(does_not_need)
    (gradient,) = torch.autograd.grad(compiled(x, y).sum(), x, create_graph=True)
    assert torch.equal(*(torch.autograd.grad(g.sum(), x)[0] for g in (gradient, x.cos() * 2)))


def of_a_product(x):
    return (x.sin() * x.sum()).exp() - x.cos() / x.shape[0]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", [mixing, with_its_size, of_a_product])
def test_forward_mode_has_two_plans_for_all_sizes(function: Callable, requires_grad: bool) -> None:
    """Behind Dynamo: the second plan has symbols for the sizes that have changed.

    Dynamo of torch >= 2.14 runs a function eagerly if an argument has a tangent.
    """
    step = functools.partial(tangent_and_gradients, requires_grad=requires_grad)
    expected = [0] * 5 if torch.__version__ >= "2.14" else [2, 1, 0, 0, 0]
    assert plans_made(function, made_with_dynamo(function), step) == expected


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", [mixing, with_its_size, of_a_product])
def test_forward_mode_has_one_plan_for_all_sizes(function: Callable, requires_grad: bool) -> None:
    step = functools.partial(tangent_and_gradients, requires_grad=requires_grad)
    assert plans_made(function, made_without(function), step) == [1, 0, 0, 0, 0]


def tangent_and_gradients(function, n, requires_grad):
    x = torch.randn(n, dtype=torch.float64, requires_grad=requires_grad)
    with forward_ad.dual_level():
        results = tuple(forward_ad.unpack_dual(function(forward_ad.make_dual(x, x.detach().cos()))))
    return (*results, *torch.autograd.grad(sum(each.sum() for each in results), x)) if requires_grad else results


def squared(x):
    return (x.sin() * x).sum() ** 2


def scaled(x):
    return ((x.sin() * x).sum() * x.shape[0] / 9).cos()


TRANSFORMS: dict[str, Callable[[Callable], Callable]] = {
    "hessian": torch.func.hessian,
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "grad of grad": lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).square().sum()),
    "vmap of grad": lambda f: lambda x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, x * 2])),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x.cos(),))[1],
}


def applied(function, n):
    return (function(torch.randn(n, dtype=torch.float64)),)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("function", [squared, scaled])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_that_is_compiled_is_one_plan_for_all_sizes(name: str, function: Callable) -> None:
    transformed = TRANSFORMS[name](function)
    assert plans_made(transformed, made_without(transformed), applied) == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("name", [name for name in TRANSFORMS if name != "jvp"])
def test_a_transform_of_a_compiled_function_has_its_plans_for_all_sizes(name: str) -> None:
    transform = TRANSFORMS[name]
    made = plans_made(transform(squared), transform(made_without(squared)), applied)
    assert made[0] > 0 and made[1:] == [0, 0, 0, 0]
