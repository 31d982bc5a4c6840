"""Functions that a trace cannot see into, and how a compiled function of them is compared with eager."""

from __future__ import annotations

import numpy as np
import torch

import aotgrad

ISLANDS = {"islands": True, "min_graph_ops": 0}


class NumpySin(torch.autograd.Function):
    """Forward and backward compute with NumPy."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * torch.from_numpy(np.cos(x.detach().numpy()))


class NumpyBackward(torch.autograd.Function):
    """Only the backward computes with NumPy."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    backward = NumpySin.backward


class Listed(torch.autograd.Function):
    """The forward reads a list, and the backward can be differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3 + 0 * len(x.tolist())

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * gradient * x**2


class Branching(torch.autograd.Function):
    """The backward branches on the gradient that arrives."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3 if gradient.sum() > 0 else gradient * 5


class Dropped(torch.autograd.Function):
    """A product whose backward passes `None` on to the first factor."""

    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient * 2


class Undefined(torch.autograd.Function):
    """Two results, whose gradients are `None` where they are undefined."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        return torch.from_numpy(x.detach().numpy() * 2), torch.from_numpy(y.detach().numpy() * 3)

    @staticmethod
    def backward(ctx, of_x, of_y):
        return None if of_x is None else of_x * 2, None if of_y is None else of_y * 3


@torch.library.custom_op("aotgrad_islands::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    """A custom op without a fake implementation, and with a formula."""
    return torch.from_numpy(np.sin(x.detach().numpy()))


@torch.library.custom_op("aotgrad_islands::cosine", mutates_args=())
def cosine(x: torch.Tensor) -> torch.Tensor:
    """A custom op without a fake implementation, and without a formula."""
    return torch.from_numpy(np.cos(x.detach().numpy()))


def save_argument(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


sine.register_autograd(lambda ctx, gradient: gradient * cosine(ctx.saved_tensors[0]), setup_context=save_argument)

LIBRARY = torch.library.Library("aotgrad_islands", "FRAGMENT")
LIBRARY.define("kernel(Tensor x) -> Tensor")
LIBRARY.impl("kernel", lambda x: NumpySin.apply(x), "Autograd")
LIBRARY.impl("kernel", lambda x: torch.from_numpy(np.sin(x.numpy())), "CPU")


@aotgrad.island
def exponential(x):
    return x.exp()


@aotgrad.island
def several(x, y, *, factor=2.0):
    """Results in a pytree, one of them without a gradient, each with the gradient of one argument."""
    return {"a": x.exp() * factor, "b": y.tanh(), "nothing": None}, torch.from_numpy(np.sin(x.detach().numpy()))


def step_of(model, optimizer):
    """A training step that returns its loss."""

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def leaf(*size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(size or (4, 3)), generator=generator).requires_grad_()


def gradients_of(function, *inputs):
    """The result, and the gradients of all inputs."""
    result = function(*inputs)
    return [result, *torch.autograd.grad(result.sum(), inputs)]
