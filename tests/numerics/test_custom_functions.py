"""Users' `torch.autograd.Function`s: both styles, views, non-differentiable outputs, and the features of their context."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from .against_eager import ALL, COMPILERS, DYNAMO_BACKENDS, compiled, leaf, non_leaf
from .cases import Case, Cases, known

CASES = Cases()


class TripledGradient(Function):
    """The gradient differs from the forward's, so a test detects whether this backward ran."""

    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient


class ScaledExp(Function):
    """Saves its result, and takes a number."""

    @staticmethod
    def forward(ctx, x, scale):
        y = (x * scale).exp()
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y * ctx.scale, None


class Multiply(Function):
    """The style with `setup_context`."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * y, gradient * x


class SortWithIndices(Function):
    """The second output has no gradient."""

    @staticmethod
    def forward(ctx, x):
        values, indices = x.sort(dim=-1)
        ctx.save_for_backward(indices)
        ctx.mark_non_differentiable(indices)
        return values, indices

    @staticmethod
    def backward(ctx, gradient, _):
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter(-1, indices, gradient)


class OnlyWhatIsNeeded(Function):
    """Reads which gradients are needed."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return (
            gradient * y if ctx.needs_input_grad[0] else None,
            gradient * x if ctx.needs_input_grad[1] else None,
        )


class TwoOutputs(Function):
    """Declines zeros in place of missing gradients."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        terms = [factor * gradient for factor, gradient in ((2, first), (3, second)) if gradient is not None]
        return sum(terms) if terms else None


class NoGradientForTheSecond(Function):
    """Returns `None` for an input that requires grad."""

    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class DoubleInPlace(Function):
    """Mutates its input and marks it dirty."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class FlatView(Function):
    """A view with a tripled gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.view(-1)

    @staticmethod
    def backward(ctx, gradient):
        return 3 * gradient.view(ctx.shape)


class SameTensor(Function):
    """Returns its input, with another gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class StraightThrough(Function):
    """Rounds, and lets the gradient pass."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class TransposedView(Function):
    """A view with `setup_context`."""

    @staticmethod
    def forward(x):
        return x.t()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return 5 * gradient.t()


@CASES.add(lambda: (leaf(3),))
def own_gradient(x):
    return TripledGradient.apply(x)


@CASES.add(lambda: (leaf(3),))
def saved_result_and_a_number(x):
    return ScaledExp.apply(x, 0.5).sin()


@CASES.add(lambda: (leaf(3), leaf(3)))
def with_setup_context(x, y):
    return Multiply.apply(x, y) + x


@CASES.add(lambda: (leaf(2, 3),))
def a_non_differentiable_output(x):
    return SortWithIndices.apply(x)


@CASES.add(lambda: (leaf(3), leaf(3)))
def both_gradients_needed(x, y):
    return OnlyWhatIsNeeded.apply(x, y)


@CASES.add(lambda: (leaf(3), leaf(3)))
def one_gradient_needed(x, y):
    return OnlyWhatIsNeeded.apply(x, y.detach())


@CASES.add(lambda: (leaf(3),))
def one_of_two_outputs_used(x):
    return TwoOutputs.apply(x)[0].sin()


@CASES.add(lambda: (leaf(3),))
def both_outputs_used(x):
    return TwoOutputs.apply(x)


@CASES.add(lambda: (leaf(3), leaf(3)))
def no_gradient_for_an_input(x, y):
    return NoGradientForTheSecond.apply(x, y)


@CASES.add(lambda: (leaf(3),))
def an_intermediate_marked_dirty(x):
    return DoubleInPlace.apply(x * 1).exp()


@CASES.add(lambda: (non_leaf(3),), without_dynamo="Dynamo does not support mark_dirty on an input")
def an_input_marked_dirty(x):
    return DoubleInPlace.apply(x)


@CASES.add(lambda: (leaf(2, 3),))
def a_view_of_an_input(x):
    return FlatView.apply(x)


@CASES.add(lambda: (leaf(2, 3),), known_difference="a custom view of an intermediate is no view of it")
def a_view_of_an_intermediate(x):
    y = x * 2
    return FlatView.apply(y), y


@CASES.add(lambda: (leaf(2, 3),))
def a_view_of_an_intermediate_alone(x):
    return FlatView.apply(x * 2)


@CASES.add(lambda: (leaf(2, 3),))
def a_view_of_a_custom_view(x):
    return FlatView.apply(x)[1:]


@CASES.add(lambda: (leaf(2, 3),))
def a_custom_view_of_a_view(x):
    return FlatView.apply(x[1:])


@CASES.add(lambda: (leaf(2, 3),), known_difference="a custom view of an intermediate is no view of it")
def a_custom_view_with_setup_context(x):
    y = x.exp()
    return TransposedView.apply(y), y[0]


@CASES.add(lambda: (leaf(2, 3),))
def views_of_a_result(x):
    return TripledGradient.apply(x).chunk(2)


@CASES.add(lambda: (leaf(2, 3),))
def a_result_and_its_views(x):
    y = TripledGradient.apply(x)
    return y.detach(), y.view(-1), y


@CASES.add(lambda: (leaf(3),))
def an_alias_with_another_gradient(x):
    return SameTensor.apply(x), x * 2


@CASES.add(lambda: (leaf(3),))
def straight_through(x):
    return StraightThrough.apply(x * 2).sum()


@CASES.add(lambda: (leaf(3),))
def one_inside_of_the_other(x):
    return TripledGradient.apply(ScaledExp.apply(TripledGradient.apply(x), 2.0))


@CASES.add(lambda: (leaf(3),))
def under_no_grad(x):
    with torch.no_grad():
        y = TripledGradient.apply(x)
    return x * y


@CASES.parametrize()
def test_custom_functions(case: Case, backend: str) -> None:
    case.check(backend)


@pytest.mark.parametrize("backend", COMPILERS)
def test_a_custom_view_refuses_to_be_changed_in_place(backend: str) -> None:
    """Eager refuses it, since the view's own backward would be overridden."""
    CASES["a_view_of_an_input"].check(backend, caller=lambda output, args: output.mul_(2), raises=RuntimeError)


# --- Gradients of gradients ------------------------------------------------------------------------------------------


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradient


class ExpWithoutItsOwnGradient(Function):
    """Its backward keeps a factor out of gradients of gradients."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            factor = x.exp()
        return gradient * factor * x / x


def cubes(x):
    return Cube.apply(x.sin()) * x


def cubes_of_cubes(x):
    return Cube.apply(Cube.apply(x) * x)


def half_differentiated(x):
    return ExpWithoutItsOwnGradient.apply(x * x) + x.sin()


def cubes_in_a_checkpoint(x):
    return checkpoint(lambda x: Cube.apply(x.sin()).exp(), x, use_reentrant=False) * x


def derivatives(function, x, count):
    """The first `count` derivatives of the sum of `function`."""
    value = function(x)
    for _ in range(count):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        yield value


def all_but_dynamos(backend: str) -> list[pytest.MarkDecorator]:
    return known("Dynamo leaves gradients off behind the backward's own no_grad()" if backend in DYNAMO_BACKENDS else "")


FUNCTIONS = [
    *itertools.product((cubes, cubes_of_cubes, cubes_in_a_checkpoint), ALL),
    *(pytest.param(half_differentiated, backend, marks=all_but_dynamos(backend)) for backend in ALL),
]


@pytest.mark.parametrize(("function", "backend"), FUNCTIONS)
def test_gradients_of_gradients(function, backend: str) -> None:
    torch._dynamo.reset()
    x = torch.tensor([0.5, 1.0, -0.7], dtype=torch.float64, requires_grad=True)
    for mine, expected in zip(
        derivatives(compiled(function, backend, options={"min_graph_ops": 0}), x, 3),
        derivatives(function, x, 3),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected)
