"""What a function asks of its arguments becomes a guard, or is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.errors import CaptureError


def with_gradient(x):
    x.grad = torch.ones_like(x)
    return x


QUESTIONS = {
    "is a leaf": (
        lambda x: x * (2 if x.is_leaf else 3),
        lambda: torch.ones(2, requires_grad=True),
        lambda: torch.ones(2, requires_grad=True) * 1,
    ),
    "storage offset": (lambda x: x + x.storage_offset(), lambda: torch.ones(2), lambda: torch.ones(3)[1:]),
    "storage offset of a view": (lambda x: x + x[1:].storage_offset(), lambda: torch.ones(2), lambda: torch.ones(3)[1:]),
    "storage offset of a part": (
        lambda x: x.as_strided((1,), (1,), x.unsqueeze(0).detach().storage_offset()) * 2,
        lambda: torch.tensor([1.0, 2.0]),
        lambda: torch.tensor([3.0, 1.0, 2.0])[1:],
    ),
    "has a gradient": (
        lambda x: x * (2 if x.grad is None else 3),
        lambda: torch.ones(2, requires_grad=True),
        lambda: with_gradient(torch.ones(2, requires_grad=True)),
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_is_a_guard(name):
    function, first, second = QUESTIONS[name]
    compiled = aotgrad.aot_function(function, aotgrad.nop)
    assert torch.equal(compiled(first()), function(first()))
    (plan,) = compiled.plans()
    assert plan.guards.check([first()])
    assert not plan.guards.check([second()])
    assert f"tensor argument 0: {name.split(' of a ')[0]}" in plan.guards.why_not([second()])
    if name == "has a gradient":
        with pytest.raises(CaptureError, match=r"reads \.grad of input 0"):
            compiled(second())
    else:
        assert torch.equal(compiled(second()), function(second()))


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_is_not_asked_is_no_guard(name):
    _, first, second = QUESTIONS[name]
    compiled = aotgrad.aot_function(lambda x: x * 2, aotgrad.nop)
    for _ in range(2):
        compiled(first()), compiled(second())
    assert len(compiled.plans()) == 1


@pytest.mark.parametrize("later", [lambda: torch.arange(4.0)[1:].view(1, 3), lambda: torch.arange(6.0)[2:5].view(1, 3)])
def test_a_kernel_that_asks_where_a_tensor_lies(later):
    """`fill_diagonal_` goes by the storage offset; another plan, or an error, but not the place of the first call."""

    def f(x):
        x.fill_diagonal_(2)
        return x * 1

    compiled = aotgrad.aot_function(f, aotgrad.nop)
    assert compiled(torch.arange(3.0).view(1, 3)).tolist() == [[2, 1, 2]]
    assert compiled(torch.arange(3.0).view(1, 3)).tolist() == [[2, 1, 2]]
    with pytest.raises(CaptureError, match="viewed by as_strided"):
        compiled(later())
    assert [plan.hits for plan in compiled.plans()] == [1]


@pytest.mark.parametrize("question", [lambda x: x._version, lambda x: x._base is None, lambda x: x._is_view()])
def test_the_history_of_an_argument_is_refused(question):
    compiled = aotgrad.aot_function(lambda x, y: x * (2 if question(y) else 3), aotgrad.nop)
    with pytest.raises(CaptureError, match="of input 1, which a traced tensor does not have"):
        compiled(torch.ones(2), torch.ones(2))


@pytest.mark.parametrize("question", [lambda x: x[0]._version, lambda x: x.view_as(x)._base is x])
def test_the_history_of_a_view_of_an_argument_is_refused(question):
    compiled = aotgrad.aot_function(lambda x, y: x * (2 if question(y) else 3), aotgrad.nop)
    with pytest.raises(CaptureError, match="of input 1, which a traced tensor does not have"):
        compiled(torch.ones(2), torch.ones(2))


def test_the_history_of_a_new_tensor_is_its_own():
    def f(x):
        y = (x * 2).add_(1)
        return x * (2 + y[0]._version) * (2 if y[0]._base is y else 3) + y.storage_offset()

    compiled = aotgrad.aot_function(f, aotgrad.nop)
    x = torch.ones(3)[1:]
    assert torch.equal(compiled(x), f(x))


def test_a_parameter_is_one_in_the_trace():
    compiled = aotgrad.aot_function(lambda x: x * (2 if isinstance(x, nn.Parameter) else 3), aotgrad.nop)
    results = [compiled(x).sum().item() for x in (nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True))]
    assert results == [4, 6]
