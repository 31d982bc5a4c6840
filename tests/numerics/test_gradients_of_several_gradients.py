"""Gradients of several gradients: they share one autograd node, and behave as eager's, which has many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from aotgrad.runtime.autograd import is_segment

from .against_eager import compiled

WAYS = ["nop", "eager", "inductor", "dynamo"]
SECOND_TIME = "backward through the graph a second time"


def network(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return torch.addmm(d, torch.addmm(b, x, a).tanh(), c)


def leaves() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 3), (3, 4), (4,), (4, 2), (2,))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def gradients(function: Callable, inputs: Sequence[Tensor], of: Sequence[int] = (1, 2, 3, 4)) -> tuple[Tensor, ...]:
    loss = function(*inputs).square().sum()
    return torch.autograd.grad(loss, [inputs[k] for k in of], create_graph=True)


Program = Callable[[Callable, list[Tensor]], Any]


def all_at_once(function: Callable, inputs: list[Tensor]) -> Any:
    found = gradients(function, inputs)
    return torch.autograd.grad([g.square().sum() for g in found], inputs)


def one_by_one(function: Callable, inputs: list[Tensor]) -> Any:
    """Rows of a Hessian: each is a backward of its own."""
    found = gradients(function, inputs)
    return [torch.autograd.grad(g.sum(), inputs, retain_graph=True, allow_unused=True) for g in found]


def one_after_another_freed(function: Callable, inputs: list[Tensor]) -> Any:
    """The second backward passes through what the first one has freed, in eager and here."""
    found = gradients(function, inputs)
    first = torch.autograd.grad(found[0].square().sum(), inputs[1:4])
    with pytest.raises(RuntimeError, match=SECOND_TIME):
        torch.autograd.grad(found[0].square().sum(), inputs[1:4])
    return first


def some_dropped(function: Callable, inputs: list[Tensor]) -> Any:
    found = gradients(function, inputs)
    loss = found[2].square().sum()
    del found
    return torch.autograd.grad(loss, inputs, allow_unused=True)


def hooked(function: Callable, inputs: list[Tensor]) -> Any:
    found = gradients(function, inputs)
    seen: dict[int, Tensor] = {}
    for k, g in enumerate(found):
        g.register_hook(lambda gradient, k=k: seen.update({k: gradient.clone()}) or gradient * (k + 1))
        g.retain_grad()
    sum(g.sin().sum() for g in found).backward()
    return [seen[k] for k in range(len(found))], [g.grad for g in found], [leaf.grad for leaf in inputs]


def up_to_a_gradient(function: Callable, inputs: list[Tensor]) -> Any:
    found = gradients(function, inputs)
    ends = [found[0], inputs[1], found[3]]
    return torch.autograd.grad(sum(g.sin().sum() for g in found), ends)


def changed_in_place(function: Callable, inputs: list[Tensor]) -> Any:
    found = gradients(function, inputs)
    found[0].mul_(2)
    found[1].add_(found[1].detach())
    found[2].detach().zero_()
    return torch.autograd.grad([g.square().sum() for g in found], inputs)


def third_derivatives(function: Callable, inputs: list[Tensor]) -> Any:
    found = gradients(function, inputs)
    seconds = torch.autograd.grad([g.square().sum() for g in found], inputs, create_graph=True)
    return torch.autograd.grad([s.square().sum() for s in seconds], inputs)


PROGRAMS: list[Program] = [
    all_at_once,
    changed_in_place,
    hooked,
    one_after_another_freed,
    one_by_one,
    some_dropped,
    third_derivatives,
    up_to_a_gradient,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_they_are_eagers(program: Program, way: str) -> None:
    expected = program(network, leaves())
    function = compiled(network, way)
    for _ in range(2):  # the second time with all plans
        torch.testing.assert_close(program(function, leaves()), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("way", WAYS)
def test_they_have_one_node_and_eagers_strides(way: str) -> None:
    expected, found = gradients(network, leaves()), gradients(compiled(network, way), leaves())
    assert [g.stride() for g in found] == [g.stride() for g in expected]
    assert is_segment(found[0].grad_fn) and len({g.grad_fn for g in found}) == 1


def residual(x: Tensor, a: Tensor, y: Tensor) -> Tensor:
    """The gradient of `x` is computed from that of `y`."""
    return (torch.tanh(x @ a) + y).sin()


def shared(x: Tensor, a: Tensor, y: Tensor) -> Tensor:
    """The gradients of `x` and `y` are one tensor."""
    return (x + y) @ a.sin()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [residual, shared], ids=lambda function: function.__name__)
def test_one_that_others_are_computed_from_keeps_its_hooks(function: Callable, way: str) -> None:
    """Its hook sees the sum of what the loss and the other gradients pass to it."""

    def inputs() -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [torch.randn(3, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]

    expected = of_all(function, inputs())
    under_test = compiled(function, way)
    for _ in range(2):
        torch.testing.assert_close(of_all(under_test, inputs()), expected, rtol=1e-9, atol=1e-9)


def of_all(function: Callable, inputs: list[Tensor]) -> Any:
    found = gradients(function, inputs, of=(0, 1, 2))
    seen: dict[int, Tensor] = {}
    for k, g in enumerate(found):
        g.register_hook(lambda gradient, k=k: seen.update({k: gradient.clone()}) or gradient * 2)
    sum(g.square().sum() for g in found).backward()
    return [seen[k] for k in range(3)], [leaf.grad for leaf in inputs]
