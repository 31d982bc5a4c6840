"""Results of functions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from tests.golden.cases import case


class Point(NamedTuple):
    x: Any
    y: Any


@case("runtime", "joint", args=["f32[3]", "f32[3]"])
def returned_new_leaves(x, y):
    """A new tensor and a detached alias start histories of their own, where gradients end; an argument is set to."""
    leaf, alias = (x * 2).requires_grad_(), x.detach().requires_grad_()
    return leaf, alias, leaf * alias * y.requires_grad_()


@case("analysis", "runtime", args=["f32[3] requires_grad", "f32[3]"])
def output_is_input(x, y):
    """An input returned unchanged: the plan returns the caller's own object, the graph nothing."""
    return x, y * x


@case("analysis", "joint", "runtime", args=["f32[2, 3] requires_grad"])
def view_of_input(x):
    """The graph does not compute a view of an input: the plan applies the recorded view ops to the caller's tensor."""
    return x.t()[0]


@case("analysis", "runtime", args=["f32[2, 3] requires_grad"])
def view_of_returned_view(x):
    """A view of a returned view is made from that view: a hook on the first sees the gradient of both."""
    flat = x.view(6)
    return flat, flat[1:]


@case("analysis", "runtime", args=["f32[2, 3]"])
def view_before_a_metadata_mutation(x):
    """A view older than the transposition of its base is made before the plan transposes the caller's tensor."""
    flat = x.view(6)
    x.t_()
    return flat, x[0]


@case("analysis", "runtime", args=["f32[3] requires_grad"])
def result_changed_in_place(x):
    """The version counter of a result equals eager's, before autograd saves it."""
    y = (x * 2).add_(1)
    return y, y.sin()


@case("analysis", "runtime", args=["f32[4] nonleaf"])
def view_of_mutated_input(x):
    """The view is made from the input, after that has its new data: both share memory and history."""
    x.mul_(2)
    return x.view(2, 2)


@case("analysis", "joint", "runtime", args=["f32[2, 3] requires_grad"])
def views_of_intermediate(x):
    """Two views of a tensor that is not returned: the graph returns it as their base, and the plan makes both views."""
    y = x.sin()
    return y[0], y[1]


@case("analysis", "joint", "runtime", args=["f32[2, 3] requires_grad"])
def base_is_output(x):
    """A view of a tensor that is returned too: the output serves as base."""
    y = x.sin()
    return y, y.t()


@case("analysis", "joint", args=["f32[2, 3] requires_grad"])
def single_view(x):
    """One view of an otherwise invisible tensor: its base is a result of the graph, and the plan replays the view."""
    return x.sin().t()


@case("analysis", "runtime", args=["f32[4] requires_grad"])
def several_pieces(x):
    """An op that returns several views is replayed once: they are results of one autograd node, as in eager."""
    return (x * 2).chunk(2)


@case("analysis", "joint", "runtime", args=["f32[3] requires_grad"])
def detached_alias(x):
    """`x` and `x.detach()`: the second shares the first's memory but not its history."""
    y = x.sin()
    return y, y.detach()


@case("runtime", args=["f32[3] requires_grad"])
def data_alias(x):
    """`x.data` has its own version counter: the caller may mutate it unnoticed by autograd, as in eager."""
    y = x.sin()
    return y, y.data, x.data[1:]


@case("analysis", "runtime", args=["f32[3] requires_grad"])
def detached_input(x):
    """A detached input is a view like any other, and replayed."""
    return x.detach()


@case("analysis", "runtime", args=["f32[3] requires_grad"], helpers=[Point])
def nested_outputs(x):
    """Containers are taken apart; numbers, strings and `None` are constants of the plan."""
    return {"point": Point(x * 2, None), "scale": (2, 0.5, "meters")}


@case("analysis", "joint", args=["f32[3] requires_grad"])
def integer_output(x):
    """An output without a possible gradient has no tangent."""
    values, indices = x.sort()
    return values, indices


@case("joint", args=["f32[3] requires_grad", "f32[3] requires_grad"])
def unused_input(x, y):
    """The gradient of an input that nothing depends on is `None`."""
    return x * 2


@case("analysis", "joint", args=["f32[3] requires_grad"])
def same_output_twice(x):
    """One tensor returned twice: the graph returns it once, and the second is the first."""
    y = x.sin()
    return y, y


@case("capture", "joint", args=["f32[3] requires_grad", "same 0"])
def duplicate_input(x, y):
    """One tensor passed twice is one input of the graph, with one gradient."""
    return x * y


@case("joint", "runtime", args=["f32[3]", "f32[3]"])
def nothing_requires_grad(x, y):
    """No input requires grad: there is no backward, and no autograd node around the compiled graph."""
    return torch.maximum(x, y)


@case("analysis", "joint", args=["f32[3] requires_grad"])
def requires_grad_mixture(x):
    """Outputs with and without a gradient: only the first has a tangent."""
    return x.sin(), x.detach() * 2, torch.ones(2)
