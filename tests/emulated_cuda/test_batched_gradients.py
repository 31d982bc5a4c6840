"""Batched gradients, in the device threads of autograd's engine."""

from __future__ import annotations

import pytest
import torch

import aotgrad


def function(x):
    return (x.sin() * x).sum(1)


@pytest.fixture(params=[aotgrad.nop, "inductor"], ids=["nop", "inductor"])
def compiled(request):
    return aotgrad.aot_function(function, request.param)


def test_gradients_are_batched(compiled):
    x, tangents = torch.randn(3, 4, device="cuda", requires_grad=True), torch.eye(3, device="cuda")
    for _ in range(2):
        expected, found = (
            torch.autograd.grad(each(x), x, tangents, is_grads_batched=True)[0] for each in (function, compiled)
        )
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_jacobian_is_vectorized(compiled, create_graph):
    x = torch.randn(3, 4, device="cuda", requires_grad=True)

    def jacobian(of):
        return torch.autograd.functional.jacobian(of, x, vectorize=True, create_graph=create_graph)

    torch.testing.assert_close(jacobian(compiled), jacobian(function))
    torch.testing.assert_close(torch.func.jacrev(compiled)(x), jacobian(function))
