"""A function overwrites a value that its backward needs: gradients independent of it are computed, the others raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import aotgrad

from .against_eager import assert_matches

Tensors = Sequence[torch.Tensor]


def product_with_itself(x):
    x.mul_(x)
    return x.clone()


def beside_a_weight(x, weight):
    x.mul_(x)
    return x * weight, weight.sin()


def in_the_middle(x, weight):
    hidden = x.exp()
    hidden.add_(1)
    return hidden + weight * 2


def through_a_view(x, weight):
    part = x[0]
    part.mul_(part)
    return x * weight


def through_a_view_of_a_copy(x, weight):
    y = x.clone()
    part = y[1:]
    part.mul_(part)
    return y * weight, weight * 3


def twice(x, weight):
    x.exp_()
    y = x * 2
    x.add_(1)
    return y, x * weight


def before_and_after(x, weight):
    hidden = weight.exp()
    before = hidden.sin()
    hidden.add_(1)
    return before, hidden, x * 2


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 + 0 * x


def of_a_custom_function(x, weight):
    hidden = x.sin()
    doubled = Doubled.apply(hidden)
    hidden.add_(1)
    return doubled, hidden * weight


FUNCTIONS = [
    product_with_itself,
    beside_a_weight,
    in_the_middle,
    through_a_view,
    through_a_view_of_a_copy,
    twice,
    before_and_after,
    of_a_custom_function,
]


def gradients(results: Tensors, inputs: Tensors, **options: Any) -> Any:
    """The gradients or the error of each result's backward, for some sets of inputs."""
    try:
        found = torch.autograd.grad(sum(r.sum() for r in results), inputs, allow_unused=True, retain_graph=True, **options)
    except RuntimeError as error:
        return str(error).partition(":")[0]
    return [None if each is None else [round(number, 12) for number in each.tolist()] for each in found]


def all_gradients(function: Callable[..., Any], count: int) -> Iterator[Any]:
    torch.manual_seed(1)
    leaves = [torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(count)]
    inputs = [leaf.clone() for leaf in leaves]
    results = function(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    for roots in (*([result] for result in results), results):
        for wanted in (leaves, inputs, leaves[:1], leaves[-1:], inputs[:1], inputs[-1:], results[:1]):
            yield gradients(roots, wanted)


@pytest.mark.parametrize("options", [{}, {"grad_segments": 3}], ids=["whole", "segments"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_an_overwritten_value_is_not_needed_for_is_computed(halves, function, options):
    count = function.__code__.co_argcount
    wanted = list(all_gradients(function, count))
    assert any(isinstance(each, str) for each in wanted), "eager raises somewhere"
    assert_matches(list(all_gradients(aotgrad.aot_function(function, halves, options=options), count)), wanted, halves)


def second_gradients(function: Callable[..., Any]) -> list[Any]:
    """Derivatives by the second input, if the function overwrites a value between the first input and its result."""
    torch.manual_seed(1)
    x, weight = (torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    *_, result = function(x, weight)
    (first,) = torch.autograd.grad((result * result).sum(), weight, create_graph=True)
    return [first.tolist(), gradients([first**2], [weight]), gradients([first**2], [x])]


@pytest.mark.parametrize("options", [{}, {"grad_segments": 3}], ids=["whole", "segments"])
def test_gradients_of_gradients_beside_an_overwritten_value(halves, options):
    def function(x, weight):
        hidden = x.exp()
        hidden.add_(1)
        return x * 2, hidden + weight**3

    found = second_gradients(aotgrad.aot_function(function, halves, options=options))
    assert_matches(found, second_gradients(function), halves)
    assert isinstance(found[2], str), "x is behind the value that is gone"
