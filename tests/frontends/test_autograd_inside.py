"""`autograd.grad` and `backward()` inside of what Dynamo captures: no graph break, and what eager computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

both = pytest.mark.parametrize("backend", ["aotgrad", "aotgrad_eager"])


@pytest.fixture(autouse=True)
def traced_autograd() -> Iterator[None]:
    """Let Dynamo capture these calls, instead of breaking the graph."""
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        pytest.skip("this torch has no torch._dynamo.config.trace_autograd_ops")
    torch._dynamo.reset()
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        yield


def compiled(function: Callable, backend: str) -> Callable:
    return torch.compile(function, backend=backend, fullgraph=True, options={"cache": False})


def assert_same(function: Callable, backend: str, make: Callable[[], list[torch.Tensor]], calls: int = 2) -> None:
    """Compare results and, after a backward from them, the gradients of the inputs."""
    outcomes = []
    for call in (function, compiled(function, backend)):
        args = make()
        results = [call(*args) for _ in range(calls)]
        if results[-1].requires_grad:
            sum(result.sum() for result in results).backward()
        outcomes.append([*results, *(each.grad for each in args)])
    torch.testing.assert_close(outcomes[1], outcomes[0])


def leaves() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)]


@both
def test_a_gradient_that_is_differentiated_again(backend):
    def penalized(x, w):
        y = torch.tanh(x @ w).sin().sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        return gradient.square().sum() + y

    assert_same(penalized, backend, leaves)


@both
def test_a_gradient_that_is_a_result(backend):
    def forces(x, w):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(torch.tanh(x @ w).sin().sum(), x)
        return gradient

    assert_same(forces, backend, leaves)


@both
def test_a_laplacian(backend):
    def laplacian(x, w):
        y = torch.tanh(x @ w).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        columns = (torch.autograd.grad(first[:, k].sum(), x, create_graph=True)[0][:, k] for k in range(4))
        return sum(columns)

    assert_same(laplacian, backend, leaves)


@both
def test_a_backward_accumulates_into_parameters(backend):
    def make() -> tuple[Callable, nn.Module]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            return loss.detach()

        return step, model

    (eager, wanted), (step, found) = make(), make()
    step, x = compiled(step, backend), torch.randn(5, 4)
    for _ in range(3):
        torch.testing.assert_close(step(x), eager(x))
        torch.testing.assert_close([p.grad for p in found.parameters()], [p.grad for p in wanted.parameters()])
    found.zero_grad()
    wanted.zero_grad()
    torch.testing.assert_close(step(x), eager(x))
    torch.testing.assert_close([p.grad for p in found.parameters()], [p.grad for p in wanted.parameters()])
