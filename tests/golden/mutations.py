"""Inputs that the function mutates."""

from __future__ import annotations

import torch
from torch import nn

from tests.golden.cases import case


@case("analysis", "runtime", args=["f32[3] requires_grad", "f32[3]"])
def assigned_data(x, y):
    """An input gets the memory of a new value: the plan assigns a result at the end; gradients go to the input."""
    x.data = y * 2
    return x * y


@case("analysis", "joint", "partition", "runtime", args=["f32[3] nonleaf", "f32[3]"])
def input_mutation(x, y):
    """The data of an input changes in place.

    The graph is functional: it returns the new value, and the plan copies it into the input. Autograd records the
    copy, so gradients flow through it: the new value has its own tangent.
    """
    x.mul_(y)
    return x.sin()


@case("joint", "runtime", args=["f32[3] nonleaf"])
def result_of_old_and_new_value(x):
    """A result that depends on an input before and after its mutation: when its node is made, the input has its new history.

    A stand-in without its own memory keeps the old one.
    """
    old = x * 3
    x.mul_(2)
    return old + x


@case("analysis", "joint", "runtime", args=["f32[2, 3] nonleaf"])
def metadata_mutation(x):
    """Only size and strides of an input change: the graph returns nothing for it, the plan sets the geometry."""
    x.t_()
    return x * 2


@case("analysis", "runtime", args=["f32[2, 3] nonleaf"])
def data_and_metadata_mutation(x):
    """Data and geometry of the same input change: the plan first sets the geometry, then copies the data."""
    x.mul_(2)
    x.t_()
    return x.sum()


@case("analysis", "joint", "runtime", args=["f32[3] nonleaf", "f32[3] requires_grad"])
def mutation_under_no_grad(x, y):
    """A change under `no_grad`: the input keeps its history, and the new value has no tangent."""
    with torch.no_grad():
        x.add_(1)
    return x * y


@case("analysis", "runtime", args=["f32[3]"])
def mutation_through_detach(x):
    """A change through `detach()` reaches the input too: both share their memory."""
    x.detach().mul_(2)
    return x + 1


@case("analysis", "joint", "runtime", args=["f32[3] requires_grad", "f32[3]"])
def leaf_under_no_grad(weight, gradient):
    """An optimizer's step: a leaf that requires grad changes under `no_grad`, and stays a leaf that requires grad."""
    with torch.no_grad():
        weight.sub_(gradient, alpha=0.1)


@case("analysis", "runtime", args=["f32[3]"])
def several_mutations(x):
    """Two writes are one copy; the version counter rises by two, as in eager."""
    x.mul_(2)
    x.add_(1)


@case("analysis", "runtime", args=["f32[4]"])
def mutation_through_a_view(x):
    """A write to a slice of an input: the graph returns the whole input with the new slice."""
    x[:2].zero_()


@case("analysis", "runtime", args=["f32[3]", "f32[3] requires_grad"])
def overwritten_with_a_gradient(x, y):
    """An input without history receives a value that has one: afterwards the input requires grad."""
    x.copy_(y * 2)


@case("analysis", "joint", "runtime", args=["f32[4, 2]"])
class batch_norm(nn.Module):
    """BatchNorm in training: its running statistics are buffers, lifted to inputs, and change on every call."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        return self.norm(x)


@case("partition", "runtime", args=["f32[3]"], keep_inference_input_mutations=True)
def kept_input_mutation(x):
    """Without a backward, and with the option, the graph itself ends in the copy, so that a backend can fuse it."""
    x.mul_(2)
    return x + 1


@case("partition", args=["f32[3]", "f32[3] requires_grad"])
def old_value(x, y):
    """The sum is cheap, but cannot be recomputed from an overwritten input: it is saved."""
    z = (x + 1) * y
    x.zero_()
    return z


@case("joint", "runtime", args=["f32[3] nonleaf"])
def saved_value_overwritten(x):
    """A value that the backward needs is mutated: the call works, and a backward raises eager's error."""
    y = x.exp()
    y.add_(1)
    return y


@case("joint", args=["f32[3] nonleaf", "f32[3] requires_grad"])
def gradients_beside_an_overwritten_value(x, weight):
    """A backward raises where it needs the overwritten value; gradients that do not need it are computed."""
    return x.mul_(x) * weight


@case("capture", "analysis", "joint", "runtime", args=["f32[4]", "view 0 [2][1] 1"])
def overlapping_inputs(x, part):
    """The second argument is a part of the first one, which is mutated: the graph gets the memory of both.

    Each argument is a view of it by its own size, stride and offset, so that a write to one is visible through the other.
    """
    x.mul_(2)
    return part + 1


@case("joint", "runtime", args=["f32[4] nonleaf", "view 0 [2][1] 1"])
def overlapping_inputs_with_gradients(x, part):
    """Gradients of the shared memory flow to the tensor that the arguments are views of.

    For the backward, the memory itself is saved, with its version counter: a later write is detected.
    """
    part.mul_(2)
    return x.sin()


@case("runtime", args=["f32[4] nonleaf", "view 0 [2][1] 0", "f32[2]"])
def disjoint_inputs(halves, first, other):
    """Overlapping memory without writes needs nothing, whatever else is written."""
    other.add_(first)
    return halves * 2
