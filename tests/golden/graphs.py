"""The contents of a captured graph, and the split of a joint graph."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import aotgrad
from tests.golden.cases import case

OFFSETS = torch.arange(3)


def silu(x):
    return x * x.sigmoid()


@case("capture", args=["f32[2, 3] requires_grad", "f32[3, 3] requires_grad", "i64[2]"])
def user_lines(x, w, index):
    """Every node belongs to the user's line above it; results carry the autograd node that made them."""
    h = F.relu(x @ w)
    h = h - h.mean(1, keepdim=True)
    return h[index], h.argmax(1)


@case("capture", args=["f32[3]"])
def captured_constant(x):
    """A tensor that is no argument is a constant of the graph."""
    return x + OFFSETS


@case("capture", args=["f32[2, 3]"])
class parameters(nn.Module):
    """Parameters and buffers of a module are its first inputs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.register_buffer("offset", torch.ones(()))

    def forward(self, x):
        return self.linear(x) + self.offset


@case("capture", args=["f32[3] requires_grad"], helpers=[silu], decompositions={torch.ops.aten.silu.default: silu})
def decomposition(x):
    """Ops in the table of decompositions are decomposed during tracing."""
    return F.silu(x)


@case("joint", args=["f32[3] requires_grad"])
def dead_code(x):
    """Ops that no output needs are removed, and `detach` is the identity."""
    x.exp().log()
    return x.detach() * x


@case("joint", args=["f32[3] requires_grad", "f32[3] requires_grad"])
def two_heads(x, y):
    """Each differentiable output has a tangent and, here, a segment; the engine sums their gradients of the shared input."""
    return x.sin(), x * y


@case("joint", "runtime", args=["f32[3] requires_grad"])
def heads_on_a_trunk(x):
    """The heads pass their gradients to the trunk through a cut, a value that is invisible outside."""
    h = x.tanh()
    return h.sin(), h.cos()


@case("joint", "runtime", args=["f32[3] requires_grad"])
def returned_intermediate(x):
    """Other outputs depend on an output: their gradients pass through it, and hooks on it see the whole gradient."""
    z = x * 2
    return z.sin(), z


@case("joint", "runtime", args=["f32[2, 3] requires_grad"])
def returned_view_of_input(x):
    """A view is no result of the graph, but gradients of values computed from it pass through it, too.

    The graph returns a gradient of the view; the plan makes the view before the autograd node and passes it as an input.
    """
    flat = x.view(6)
    return flat, flat.sin()


@case("joint", "runtime", args=["f32[2, 3] requires_grad"])
def returned_view_beside_its_base(x):
    """The plan makes the view from the base that the first autograd node returns; the second node passes gradients to it."""
    h = x * 2
    flat = h.view(6)
    return h, flat, flat.sin()


@case("joint", "runtime", args=["f32[3] requires_grad"], options={"grad_segments": 2})
def streamed_gradients(x):
    """A backward that is cut into two consecutive segments, only because of the option."""
    return x.sin().exp()


@case("joint", args=["f32[3] requires_grad", "f32[1] requires_grad"])
def broadcast(x, y):
    """The gradient of a broadcast input is summed to the input's size."""
    return x * y


@case("joint", args=["i64[2]", "f32[5, 3] requires_grad"])
def embedding(index, table):
    """An integer input has no gradient."""
    return F.embedding(index, table)


@case("partition", args=["f32[2, 3] requires_grad", "f32[3, 4] requires_grad"])
def min_cut(x, w):
    """Cheap ops are recomputed in the backward; the result of the matrix product is saved."""
    return (x @ w).sin().exp().cos()


@case("partition", args=["f32[2, 3] requires_grad", "f32[3, 4] requires_grad"], partition_fn=aotgrad.default_partition)
def save_all(x, w):
    """The same kind of function; every value that the backward reads is saved."""
    return (x @ w).sin().exp().cos()


@case("partition", args=["f32[2, 3] requires_grad", "f32[3, 2] requires_grad"])
def views_are_free(x, w):
    """A view is never saved, its base is: the backward replays the view."""
    y = x.exp()
    return y.t().reshape(2, 3) @ w


@case("partition", args=["f32[3] requires_grad", "f32[3]"])
def output_is_saved(x, y):
    """A value that is returned anyway costs nothing to save."""
    return x.exp() * 1, x.exp()


@case("partition", args=["f32[16, 8] requires_grad", "f32[8, 24] requires_grad"], options={"memory_budget": 0.8})
def attention_within_a_budget(x, w):
    """Four fifths of the bytes saved without a budget: the saved values, the recomputed ops, and the reasons."""
    q, k, v = (x @ w).split(8, dim=1)
    return torch.softmax(q @ k.t() / 8**0.5, dim=-1) @ v


@case("partition", args=["f32[96, 64] requires_grad", "f32[64, 96] requires_grad"], options={"memory_budget": 0.0})
def dropout_drawn_again(x, w):
    """With the smallest budget the mask is redrawn, from the state that the forward records."""
    return F.dropout((x @ w).sin(), 0.5).exp().sum()


@case("partition", args=["f32[8, 8] requires_grad", "f32[8, 16] requires_grad"], partition_fn=aotgrad.default_partition)
def slice_of_a_product(x, w):
    """The backward reads a quarter of the product, so a copy of that is saved."""
    return (x @ w)[:, :4].sin()


@case("partition", args=["f32[3]"])
def inference(x):
    """Without a backward there is one graph, and nothing is saved."""
    return x.sin().cos()


@case("partition", "runtime", args=["f32[3] requires_grad"], keep_inference_input_mutations=True)
class counted_calls(nn.Module):
    """With `keep_input_mutations`, the forward graph writes buffers itself, so that a backend fuses the write.

    The backward needs the old value of `scale`: it is copied before the write.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        y = x * self.scale.clone()
        self.scale.mul_(0.5)
        self.calls.add_(1)
        return y.exp()
