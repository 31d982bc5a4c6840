"""Custom autograd functions, and kinds of tensors: dtypes, memory formats, random values, symbolic sizes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.golden.cases import case


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


class ScaledGradientView(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * 10


@case("joint", args=["f32[3] requires_grad"], helpers=[Cube])
def custom_function(x):
    """The joint graph holds the user's own backward, with `setup_context` too."""
    return Cube.apply(x)


class Recipe(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, history):
        ctx.history = history
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.history.copy_(torch.maximum(ctx.history, gradient.abs()))
        return gradient / ctx.history, None


@case("joint", "runtime", args=["f32[3] requires_grad", "f32[3]"], helpers=[Recipe])
def backward_that_changes_a_buffer(x, history):
    """A backward that mutates a tensor: its node is a segment, which reads the current memory and returns a new value."""
    return Recipe.apply(x.sin(), history).exp()


@case("analysis", "joint", args=["f32[3] requires_grad"], helpers=[ScaledGradientView])
def custom_function_view(x):
    """The graph returns a view made by a custom function: a replay of the view op would lose its backward."""
    return ScaledGradientView.apply(x)


@case("joint", args=["c64[3] requires_grad", "f32[3] requires_grad"])
def complex_numbers(z, x):
    """Complex values: the gradient of the real input is real."""
    return z * x


@case("joint", args=["bf16[2, 3] requires_grad", "f32[3] requires_grad"])
def bfloat16(x, y):
    """Mixed dtypes: each gradient has the dtype of its primal."""
    return x * y


@case("joint", "runtime", args=["f32[1, 2, 3, 3][18, 1, 6, 2] requires_grad", "f32[2, 2, 1, 1] requires_grad"])
def channels_last(x, w):
    """Strides are part of the type; the backward expects a tangent in the layout of the output."""
    return F.conv2d(x, w)


@case("joint", "partition", "runtime", args=["f32[4] requires_grad"])
def dropout(x):
    """A small mask is saved rather than drawn again. The plan remembers the generator for higher orders."""
    return F.dropout(x, 0.5)


@case("capture", "joint", "partition", "runtime", args=["f32[3, 4] requires_grad"], dynamic=True)
def symbolic_sizes(x):
    """With `dynamic=True` sizes are symbols; a size that the backward needs is saved as a number."""
    return x.sum(0) / x.shape[0]


@case("analysis", "runtime", args=["f32[3, 4] requires_grad"], dynamic=True)
def view_of_symbolic_size(x):
    """A view is replayed with the sizes of the call, which the plan reads from its inputs."""
    return x.view(x.shape[0] * 2, -1), x.shape[0] * 2
