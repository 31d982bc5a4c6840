"""Code of the user that runs in the backward and reads the module: hooks and backwards of autograd functions.

The trace of the backward has the traced tensors in the module, so that the graph takes them as inputs: they get gradients,
and a parameter that was replaced is read by the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aotgrad
from aotgrad.errors import CaptureError

COMPILE: dict[str, Callable[[nn.Module], nn.Module]] = {
    "aot_module": lambda module: aotgrad.aot_module(module, "eager"),
    "aot_module_inductor": lambda module: aotgrad.aot_module(module, "inductor"),
    "dynamo": lambda module: torch.compile(module, backend="aotgrad_eager"),
    "inductor": lambda module: torch.compile(module, backend="aotgrad"),
}
REPLACED_BEFORE = 2
"""The call before which every parameter is replaced."""


class Scaled(torch.autograd.Function):
    """Its backward reads a parameter of the module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        ctx.module = module
        return x * module.weight.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.module.weight, None


class Adjoint(torch.autograd.Function):
    """Its backward runs the module again, and differentiates that with respect to the module's parameters."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.module = module
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return None, *torch.autograd.grad(ctx.module(x), (x, *parameters), gradient, allow_unused=True)


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("state", torch.zeros(4))


class FunctionThatReads(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return Scaled.apply(self.linear(x), self)


class FunctionThatReruns(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return Adjoint.apply(self.linear, x, *self.linear.parameters()) * self.weight


class HookThatReads(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.register_hook(lambda gradient: gradient * self.weight)
        return y * 2


class HookThatReadsWhatChanged(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.register_hook(lambda gradient: gradient * self.state)
        self.state.add_(1)
        return y * 2


class HookThatWrites(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)

        def keep(gradient: Tensor) -> None:
            self.state.copy_(gradient.detach().mean(0))

        y.register_hook(keep)
        return y * 2


class HookOfAModule(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.linear.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * module.bias,))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.sin()) * 2


class HookThatReadsWhatWasAssigned(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.register_hook(lambda gradient: gradient * self.state)
        self.state = self.state + 1
        return y * 2


class HookBesideAnAssignment(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.register_hook(lambda gradient: gradient * 2)
        self.state = self.state + 1
        return y * self.state


READERS = (FunctionThatReads, FunctionThatReruns, HookThatReads, HookThatReadsWhatChanged, HookOfAModule)
WRITERS = (HookThatWrites, HookBesideAnAssignment)


def seen(build: type[Parts], compile_module: Callable[[nn.Module], nn.Module]) -> Iterator[list[Tensor | None]]:
    """The result of each call, all gradients after its backward, and the buffer."""
    torch.manual_seed(0)
    module = build()
    compiled = compile_module(module)
    for call in range(REPLACED_BEFORE + 1):
        torch.manual_seed(call)
        if call == REPLACED_BEFORE:
            for part in (module, module.linear):
                for name, value in list(part.named_parameters(recurse=False)):
                    setattr(part, name, nn.Parameter(torch.randn_like(value)))
        x = torch.randn(3, 4, requires_grad=True)
        module.zero_grad()
        y = compiled(x)
        y.sum().backward()
        gradients = [None if each.grad is None else each.grad.clone() for each in (x, *module.parameters())]
        yield [y.detach(), *gradients, module.state.clone()]


def assert_as_eager(build: type[Parts], way: str) -> None:
    torch._dynamo.reset()
    for found, wanted in zip(seen(build, COMPILE[way]), seen(build, lambda module: module), strict=True):
        assert [value is None for value in found] == [value is None for value in wanted]
        torch.testing.assert_close([v for v in found if v is not None], [v for v in wanted if v is not None])


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize("way", ["aot_module", "aot_module_inductor"])
@pytest.mark.parametrize("build", [*READERS, *WRITERS])
def test_code_of_the_backward_finds_the_tensors_of_the_call(build: type[Parts], way: str) -> None:
    assert_as_eager(build, way)


@pytest.mark.parametrize("way", ["dynamo", "inductor"])
@pytest.mark.parametrize("build", [FunctionThatReads, HookThatReads])
def test_behind_dynamo(build: type[Parts], way: str) -> None:
    assert_as_eager(build, way)


@pytest.mark.parametrize("way", ["aot_module", "aot_module_inductor"])
def test_a_read_of_assigned_state_is_refused(way: str) -> None:
    compiled = COMPILE[way](HookThatReadsWhatWasAssigned())
    with pytest.raises(CaptureError, match="a hook or the backward of an autograd function reads a tensor"):
        compiled(torch.randn(3, 4, requires_grad=True))


class HookThatAssigns(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.register_hook(lambda gradient: setattr(self, "state", gradient.mean(0)))
        return y * 2


class HookThatAssignsAnAttribute(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.register_hook(lambda gradient: setattr(self, "seen", (gradient, 1)))
        return y * 2


class HookAndForwardThatAssign(Parts):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        y.register_hook(lambda gradient: setattr(self, "seen", gradient))
        self.state = self.state + 1
        return y * 2


@pytest.mark.parametrize("way", ["aot_module", "aot_module_inductor"])
@pytest.mark.parametrize("build", [HookThatAssigns, HookThatAssignsAnAttribute, HookAndForwardThatAssign])
def test_an_assignment_in_the_backward_is_refused(build: type[Parts], way: str) -> None:
    module = build()
    state = module.state
    compiled = COMPILE[way](module)
    for _ in range(2):
        with pytest.raises(CaptureError, match="the backward of an autograd function assigns a tensor to '"):
            compiled(torch.randn(3, 4, requires_grad=True))
    assert module.state is state and not hasattr(module, "seen")
