"""Buffers that the forward graph writes itself: everything that a caller sees stays as in eager."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import aotgrad
from aotgrad.slots import UpdatedInput, of_kind

WAYS = ("eager", "inductor", "aotgrad_eager", "aotgrad")


class Buffers(nn.Module):
    """A module with two buffers and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4))
        self.register_buffer("first", torch.arange(4.0))
        self.register_buffer("second", torch.ones(4))


class OldValueIsSaved(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight * self.first.clone()
        self.first.add_(1)
        return y.exp()


class NewValueIsSaved(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        self.first.mul_(0.5).add_(x.detach())
        return (x * self.weight * self.first).sin()


class Swapped(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        old = self.first.clone()
        self.first.copy_(self.second)
        self.second.copy_(old)
        return x * self.weight


class NewValueIsReturned(Buffers):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        new = self.first + 1
        self.first.copy_(new)
        return x * self.weight, new, self.first


class OldValueIsReturned(Buffers):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        old = self.first.clone()
        self.first.add_(x.detach())
        return x * self.weight, old


class PartIsWritten(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        self.first[1:].mul_(2)
        self.second.data.add_(self.first)
        return x * self.weight


class BatchNorm(Buffers):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.reshape(1, 4) * self.weight + torch.arange(8.0).reshape(2, 4))


MODULES = (OldValueIsSaved, NewValueIsSaved, Swapped, NewValueIsReturned, OldValueIsReturned, PartIsWritten, BatchNorm)


def compiled(module: nn.Module, way: str) -> nn.Module:
    options = {"keep_input_mutations": True, "min_graph_ops": 0}
    if way in ("eager", "inductor"):
        return aotgrad.aot_module(module, way, options=options)
    torch._dynamo.reset()
    module.compile(backend=way, options=options)
    return module


def steps(module: nn.Module, run: nn.Module) -> list[Tensor]:
    """What two training steps leave: results, gradients, buffers, and how far versions of buffers have risen."""
    seen = []
    for number in range(2):
        versions = [buffer._version for buffer in module.buffers()]
        x = (torch.arange(4.0) + number).requires_grad_()
        results = run(x)
        results = results if isinstance(results, tuple) else (results,)
        sum(result.sum() for result in results).backward()
        seen += [x.grad, *(parameter.grad.clone() for parameter in module.parameters())]
        seen += [value.detach().clone() for value in (*results, *module.buffers())]
        risen = (buffer._version - before for buffer, before in zip(module.buffers(), versions, strict=True))
        seen.append(torch.tensor(list(risen)))
    return seen


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", MODULES)
def test_a_training_step_is_eagers(make, way):
    expected = steps(eager := make(), eager)
    module = make()
    for ours, theirs in zip(steps(module, compiled(module, way)), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "make, way", [(OldValueIsSaved, "eager"), (Swapped, "eager"), (OldValueIsReturned, "eager"), (BatchNorm, "inductor")]
)
def test_the_graph_writes_its_buffers(make, way):
    module = compiled(make(), way)
    module(torch.ones(4, requires_grad=True))
    (plan,) = module.plans()
    forward = plan.executable.partition.forward
    assert not of_kind(forward.signature.outputs, UpdatedInput)
    assert forward.module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)


def test_a_saved_new_value_is_the_buffer_itself():
    """A caller that overwrites the buffer before the backward gets an error, and no memory is held twice."""
    module = NewValueIsSaved()
    result = compiled(module, "eager")(torch.ones(4, requires_grad=True))
    module.first.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_arguments_that_are_no_buffers_are_written_after_a_training_graph():
    """Their memory is another one in each call, which CUDA graphs do not allow."""

    def function(x: Tensor, total: Tensor) -> Tensor:
        total.add_(1)
        return x * 2

    f = aotgrad.aot_function(function, "eager", options={"keep_input_mutations": True})
    f(torch.ones(3, requires_grad=True), torch.zeros(3))
    (plan,) = f.plans()
    assert of_kind(plan.executable.partition.forward.signature.outputs, UpdatedInput)


def test_second_derivatives_beside_written_buffers():
    def second(module: nn.Module, run: nn.Module) -> Tensor:
        x = torch.arange(4.0, requires_grad=True)
        (first,) = torch.autograd.grad(run(x).exp().sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), module.weight)[0]

    module = Swapped()
    torch.testing.assert_close(second(module, compiled(module, "eager")), second(eager := Swapped(), eager))
