"""Tensors that a function sets to require grad: new ones, detached ones, and arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import aotgrad
from aotgrad.errors import CaptureError, HigherOrderError
from tests.numerics.against_eager import COMPILERS
from tests.numerics.test_backward_effects import assert_alike

# Dynamo breaks the graph at these, and eager runs them: nothing is left to compile.
every_backend = pytest.mark.parametrize("backend", COMPILERS)


def made(x, y):
    z = (x.detach() * 2).requires_grad_()
    return z, z * y + x


def made_and_alone(x, y):
    return (x.detach() * 2).requires_grad_(), x * y


def made_of_nothing(x, y):
    z = torch.ones(3, requires_grad=True)
    return z, z.sin() * x, z.cos() * y


def made_and_kept_inside(x, y):
    z = (x.detach() * 2).requires_grad_()
    return z.sin() * x + y, (z * x).sum() * z.sum()


def detached(x, y):
    z = x.detach().requires_grad_()
    return z, (z * y).sum(), x * 2


def detached_and_viewed(x, y):
    z = x.detach().requires_grad_()
    return z, z[1:], z[1:] * y[1:]


def detached_from_an_intermediate(x, y):
    h = x * y
    z = h.detach().requires_grad_()
    return h, z, z.exp() * h


def detached_from_what_is_changed(x, y):
    y.mul_(2)
    z = y.detach().requires_grad_()
    return z * x, z


def two_of_them(x, y):
    z, w = (x.detach() * 2).requires_grad_(), y.detach().requires_grad_()
    return z, w, z * w, w.sin(), z


def used_again_and_again(x, y):
    z = (x.detach() * 2).requires_grad_()
    return z, z.sin() + z.cos() * y, z.exp() * z, z.tanh() + z


def under_no_grad(x, y):
    with torch.no_grad():
        z = (x * 2).requires_grad_()
    return z, z * y


def part_of_an_argument(x, y):
    z = y[1:].requires_grad_()
    return z, z.exp() * x[1:]


def part_of_what_is_changed(x, y):
    z = y[1:].requires_grad_()
    with torch.no_grad():
        y.mul_(2)
    return z, z.detach() * x[1:]


def part_of_an_intermediate(x, y):
    h = y * 2
    z = h[1:].requires_grad_()
    return h, z, z.exp() * x[1:]


def part_under_no_grad(x, y):
    with torch.no_grad():
        z = y[1:].requires_grad_()
    return z, z * x[1:]


FUNCTIONS = (
    made,
    made_and_alone,
    made_of_nothing,
    detached,
    detached_and_viewed,
    detached_from_an_intermediate,
    detached_from_what_is_changed,
    two_of_them,
    used_again_and_again,
    under_no_grad,
    part_of_an_argument,
    part_of_what_is_changed,
    part_of_an_intermediate,
    part_under_no_grad,
)


def told(x, y):
    return x.requires_grad_() * y


def told_in_the_middle(x, y):
    before = x.sin()
    x.requires_grad_()
    return before * x.cos() * y, before.exp()


def told_and_returned(x, y):
    x.requires_grad_()
    return x, x * y, x.sum()


def told_and_not_used(x, y):
    x.requires_grad_()
    return y * 2


def told_and_hooked(x, y):
    x.requires_grad_().register_hook(lambda gradient: gradient * 3)
    return x * y


def told_under_no_grad(x, y):
    with torch.no_grad():
        x.requires_grad_()
        z = x * 2
    return z * x, y * 2


def both_told(x, y):
    x.requires_grad_()
    y.requires_grad_()
    return x * y.sin(), y.cos()


TOLD = (
    told,
    told_in_the_middle,
    told_and_returned,
    told_and_not_used,
    told_and_hooked,
    told_under_no_grad,
    both_told,
)


def backward_of_all(function: Callable, args: Sequence[Tensor]) -> Any:
    """The gradients of all results and of the new leaves; then the leaves are mutated and used further."""
    outputs = function(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    scale = iter(range(2, 99))
    roots = [(out * next(scale)).sum() for out in outputs if out.requires_grad]
    if roots:
        sum(roots).backward()
    leaves = [out for out in outputs if out.is_leaf]
    views = [(out._base is not None, out._version) for out in outputs]
    with torch.no_grad():
        for leaf in leaves:
            leaf.mul_(2)
    return outputs, views, [leaf.grad for leaf in leaves], [arg._version for arg in args]


def one_after_the_other(function: Callable, args: Sequence[Tensor]) -> Any:
    outputs = function(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for out in outputs:
        if out.grad_fn is not None:
            (out * 2).sum().backward(retain_graph=True)
    return [out.grad for out in outputs if out.is_leaf]


def of_the_leaf_alone(function: Callable, args: Sequence[Tensor]) -> Any:
    outputs = function(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    leaves = [out for out in (*outputs, *args) if out.is_leaf and out.requires_grad]
    roots = [out.sum() for out in outputs if out.grad_fn is not None]
    return torch.autograd.grad(roots, leaves, allow_unused=True) if roots and leaves else ()


USES = (backward_of_all, one_after_the_other, of_the_leaf_alone)


@every_backend
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_leaf_is_returned(function: Callable, requires_grad: bool, use: Callable, backend: str) -> None:
    assert_alike(function, use, lambda: [torch.randn(3).requires_grad_(requires_grad), torch.rand(3)], backend)


@every_backend
@pytest.mark.parametrize("use", [backward_of_all, one_after_the_other], ids=lambda use: use.__name__)
def test_a_leaf_is_kept_inside(use: Callable, backend: str) -> None:
    assert_alike(made_and_kept_inside, use, lambda: [torch.randn(3).requires_grad_(), torch.rand(3)], backend)


@every_backend
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("function", TOLD, ids=lambda f: f.__name__)
def test_an_argument_comes_to_require_grad(function: Callable, use: Callable, backend: str) -> None:
    assert_alike(function, use, lambda: [torch.randn(3), torch.rand(3)], backend)


@every_backend
def test_an_argument_that_requires_grad_is_told_so(backend: str) -> None:
    assert_alike(told, backward_of_all, lambda: [torch.randn(3).requires_grad_(), torch.rand(3)], backend)


# --- Arguments that come to require no grad ------------------------------------------------------------------------------


def ends_in_the_middle(x, y):
    z = (x * y).sin()
    x.requires_grad_(False)
    return z, x * 2


def ends_at_once(x, y):
    x.requires_grad_(False)
    return x * y, x


def is_detached(x, y):
    z = (x * y).sin()
    x.detach_()
    return z, x * 2, x


def is_viewed_before(x, y):
    z = x[1:]
    x.requires_grad_(False)
    return z, x.sin() * y


def is_viewed_after(x, y):
    z = (x * y).sin()
    x.detach_()
    return z, x[1:]


def ends_and_begins(x, y):
    z = (x * y).sin()
    x.requires_grad_(False)
    w = x * 3
    x.requires_grad_()
    return z + w, w


def is_hooked_and_ends(x, y):
    x.register_hook(lambda gradient: gradient * 3)
    z = (x * y).sin()
    x.requires_grad_(False)
    return z


ENDED = (
    ends_in_the_middle,
    ends_at_once,
    is_detached,
    is_viewed_before,
    is_viewed_after,
    ends_and_begins,
    is_hooked_and_ends,
)
LEAVES: list[Tensor] = []


def leaf_and_other() -> list[Tensor]:
    LEAVES[:] = [torch.randn(3, 3).requires_grad_()]
    return [LEAVES[0], torch.randn(3, 3)]


def computed_and_other() -> list[Tensor]:
    leaf, other = leaf_and_other()
    return [leaf * 1, other]


def flags_and_gradients(function: Callable, args: Sequence[Tensor]) -> Any:
    outputs = function(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = [(t.requires_grad, t.is_leaf, t is args[0], t._base is args[0]) for t in (args[0], *outputs)]
    with_grad = [output.sin().sum() for output in outputs if output.requires_grad]
    for loss in with_grad * 2:
        loss.backward(retain_graph=True)
    return found, outputs, LEAVES[0].grad


# Dynamo breaks the graph at these, and the code after them is another graph.
@pytest.mark.parametrize("make_args", [leaf_and_other, computed_and_other], ids=lambda make: make.__name__)
@pytest.mark.parametrize("backend", COMPILERS)
@pytest.mark.parametrize("function", ENDED, ids=lambda function: function.__name__)
def test_an_argument_ends_its_history(function: Callable, backend: str, make_args: Callable) -> None:
    if make_args is computed_and_other and "requires_grad_" in function.__code__.co_names:
        pytest.skip("only a leaf can be told so")
    assert_alike(function, flags_and_gradients, make_args, backend)


@pytest.mark.parametrize("backend", ["dynamo", "inductor"])
@pytest.mark.parametrize("function", ENDED, ids=lambda function: function.__name__)
def test_dynamo_leaves_it_to_eager(function: Callable, backend: str) -> None:
    assert_alike(function, flags_and_gradients, leaf_and_other, backend, fullgraph=False)


def test_what_is_detached_has_no_second_order(halves) -> None:
    x = torch.randn(3, requires_grad=True)
    y, _ = aotgrad.aot_function(lambda x: (x.sin(), x.detach_()), halves)(x)
    with pytest.raises(HigherOrderError, match="told an input to require no grad"):
        y.sum().backward(create_graph=True)


def of_a_new_leaf_alone(x):
    return x.sin(), torch.ones(3, requires_grad=True) * 2


def with_a_hooked_leaf(x):
    z = torch.ones(3, requires_grad=True)
    z.register_hook(lambda gradient: gradient * 2)
    return x * z


def with_a_view_of_a_leaf(x):
    z = torch.ones(3, requires_grad=True)
    return x * z, z.detach()


@pytest.mark.parametrize("function", [of_a_new_leaf_alone, with_a_hooked_leaf, with_a_view_of_a_leaf])
def test_a_gradient_that_somebody_could_see_is_refused(halves, function: Callable) -> None:
    with pytest.raises(CaptureError, match="it was made inside"):
        aotgrad.aot_function(function, halves)(torch.randn(3, requires_grad=True))
