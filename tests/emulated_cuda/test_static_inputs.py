"""The inputs that Inductor may expect at one address, or at an aligned one, are those that stay there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import aotgrad


def product(x, w):
    return ((x * w).sin() * x).sum()


WAYS: dict[str, Callable] = {
    "dynamo": lambda function: torch.compile(function, backend="aotgrad", options={"cache": False}),
    "aot_function": lambda function: aotgrad.aot_function(function, "inductor"),
}


@pytest.fixture(params=WAYS)
def compiled(request):
    torch._dynamo.reset()
    return WAYS[request.param](product)


def aligned_and_not() -> list[torch.Tensor]:
    base = torch.randn(65, device="cuda")
    return [base[:64].view(8, 8).clone(), base[1:].view(8, 8)]


def test_an_input_that_is_saved_may_be_misaligned_in_a_later_call(compiled):
    w = torch.randn(8, 8, device="cuda", requires_grad=True)
    for x in aligned_and_not():
        (expected,), (found,) = (torch.autograd.grad(function(x, w), w) for function in (product, compiled))
        torch.testing.assert_close(found, expected)


def test_an_input_of_a_gradient_of_a_gradient_may_be_misaligned_in_a_later_call(compiled):
    def second(function, x, w):
        (first,) = torch.autograd.grad(function(x, w), w, create_graph=True)
        return torch.autograd.grad(first.sum(), w)[0]

    w = torch.randn(8, 8, device="cuda", requires_grad=True)
    for x in aligned_and_not():
        torch.testing.assert_close(second(compiled, x, w), second(product, x, w))


def test_an_input_whose_new_data_is_saved_may_be_misaligned_in_a_later_call():
    def function(x, w):
        x.mul_(2)
        return ((x * w).sin() * x).sum()

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aotgrad", options={"cache": False})
    w = torch.randn(8, 8, device="cuda", requires_grad=True)
    for x in aligned_and_not():
        expected = torch.autograd.grad(function(x.clone(), w), w)
        torch.testing.assert_close(torch.autograd.grad(compiled(x, w), w), expected)


def test_a_training_step_with_cuda_graphs_is_recorded_once(recordings):
    layer = torch.nn.Linear(8, 8, device="cuda")
    step = torch.compile(lambda x: layer(x).sin().sum(), backend="aotgrad", options={"mode": "reduce-overhead"})
    inputs = [torch.randn(8, 8, device="cuda") for _ in range(4)]
    for x in inputs:
        step(x).backward()
    assert recordings == {"forward": 1, "backward": 1}
