"""Autocast around and inside of compiled functions: gradients of first and second order in the dtypes of eager."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

import aotgrad
from tests.device import TYPE

from .against_eager import ALL, EXACT, THROUGH_INDUCTOR, compiled

BF16 = functools.partial(torch.autocast, TYPE, dtype=torch.bfloat16)
OFF = functools.partial(torch.autocast, TYPE, enabled=False)


def switched_off_inside(x, w, v):
    y = x @ w
    with OFF():
        return (y.float() @ v).tanh()


def switched_on_inside(x, w, v):
    with BF16():
        y = x @ w
    return (y.float() @ v).tanh()


def products(x, w, v):
    return (x @ w).tanh() @ v


def normalized(x, w, v):
    return F.layer_norm(F.linear(x, w.t()), (5,)).softmax(-1) @ v


def weight_used_twice(x, w, v):
    return (x @ w).sin() @ v + (x * 2) @ w @ v


FUNCTIONS = (switched_off_inside, switched_on_inside, products, normalized, weight_used_twice)
AROUND = {"nothing": contextlib.nullcontext, "bfloat16": BF16, "off": OFF}
every_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
every_mode = pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)


def differentiate(function, around, around_backward, second_order=False):
    """The output, the first and, optionally, the second derivatives."""
    torch.manual_seed(0)
    inputs = [torch.randn(size, requires_grad=True) for size in ((4, 3), (3, 5), (5, 2))]
    with around():
        y = function(*inputs)
    loss = y.float().sin().sum()
    with around_backward():
        first = torch.autograd.grad(loss, inputs, create_graph=second_order)
        if not second_order:
            return [y, *first]
        penalty = sum(gradient.float().square().sum() for gradient in first)
        return [y, *first, *torch.autograd.grad(penalty, inputs, allow_unused=True)]


@every_function
@every_mode
@pytest.mark.parametrize("around_backward", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("backend", EXACT)
def test_gradients_to_the_bit(function, around, around_backward, backend) -> None:
    """Also with autocast around the backward: then eager casts the arguments of its products."""
    expected = differentiate(function, around, around_backward)
    under_test = compiled(function, backend)
    for _ in range(2):
        for actual, wanted in zip(differentiate(under_test, around, around_backward), expected, strict=True):
            assert actual.dtype == wanted.dtype
            assert torch.equal(actual, wanted)


@every_function
@every_mode
@pytest.mark.parametrize("around_backward", AROUND.values(), ids=AROUND)
def test_second_order(function, around, around_backward) -> None:
    """First derivatives are equal to the bit; second ones sum several terms in another order."""
    expected = differentiate(function, around, around_backward, second_order=True)
    actual = differentiate(compiled(function, "eager"), around, around_backward, second_order=True)
    for one, other in zip(actual[:4], expected[:4], strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    casts = BF16 in (around, around_backward) or function is switched_on_inside
    for one, other in zip(actual[4:], expected[4:], strict=True):
        torch.testing.assert_close(one, other, **({"rtol": 0.1, "atol": 0.1} if casts else {"rtol": 1e-5, "atol": 1e-5}))


@pytest.mark.parametrize("backend", THROUGH_INDUCTOR)
@every_function
def test_second_order_through_inductor(function, backend) -> None:
    """Sums of terms in bfloat16 differ by what eager's differ from those in float32, about 4 % of the largest element."""
    expected = differentiate(function, BF16, contextlib.nullcontext, second_order=True)
    actual = differentiate(compiled(function, backend), BF16, contextlib.nullcontext, second_order=True)
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.05 * other.abs().max().item())


def cast_after_a_product_in_float32(x, w, v):
    with OFF():
        y = x.float() @ w.float()
    return y.bfloat16() @ v.bfloat16()


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@every_mode
@pytest.mark.parametrize("around_backward", [contextlib.nullcontext, BF16], ids=["nothing", "bfloat16"])
@pytest.mark.parametrize("backend", ALL)
def test_a_cast_that_autocast_would_have_made(around, around_backward, backend) -> None:
    """A backend that infers dtypes by rerunning ops under autocast mistakes the cast for a no-op.

    With autocast around the backward, its graph is retraced, with the prims that the backend decomposed to.
    """
    expected = differentiate(cast_after_a_product_in_float32, around, around_backward)
    with torch._inductor.config.patch(fx_graph_cache=False):
        under_test = compiled(cast_after_a_product_in_float32, backend, options={"cache": False})
        found = differentiate(under_test, around, around_backward)
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.dtype == wanted.dtype
        assert torch.equal(actual, wanted)


def test_autocast_is_off_while_passes_and_compilers_run() -> None:
    """The graph contains its casts."""
    seen = {}

    def note(role):
        seen[role] = torch.is_autocast_enabled(TYPE)

    @dataclass(frozen=True)
    class Noting:
        name: str

        def apply(self, graph):
            note(self.name)
            return graph

    def compiler(role):
        return lambda graph, example_inputs: (note(role), aotgrad.make_boxed_func(graph.forward))[1]

    def partition(*args, **kwargs):
        note("partition")
        return aotgrad.default_partition(*args, **kwargs)

    passes = {f"{place}_passes": [Noting(place)] for place in ("joint", "forward", "backward")}
    f = aotgrad.aot_function(
        products, compiler("forward compiler"), compiler("backward compiler"), partition, options=passes
    )
    differentiate(f, BF16, contextlib.nullcontext)
    assert len(seen) == 6 and not any(seen.values()), seen


def grid_of_points(x):
    return torch.nn.functional.affine_grid(x, (2, 2, 3, 3), align_corners=False)


def bilinear_form(x):
    return torch.nn.functional.bilinear(x[:, 0], x[:, 1], x.reshape(2, 1, 6).expand(2, 3, 6)[..., :3])


KERNELS = {"grid": grid_of_points, "bilinear": bilinear_form, "pinv": torch.linalg.pinv}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("inside", [BF16, OFF], ids=["bfloat16", "off"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("backend", EXACT)
def test_a_kernel_that_calls_an_op_of_autocast(backend, name, requires_grad, inside, around):
    """A kernel below autograd, which a graph would run without casts."""
    if name == "pinv" and requires_grad and inside is BF16:
        pytest.skip("eager's gradient multiplies matrices of two dtypes")

    def with_casts(x):
        with inside():
            return KERNELS[name](x)

    def run(function):
        x = torch.linspace(-1, 1, 12, device="cpu").cos().reshape(2, 2, 3).requires_grad_(requires_grad)
        with around():
            y = function(x)
        if requires_grad:
            y.float().sin().sum().backward()
        return y, x.grad

    for actual, wanted in zip(run(compiled(with_casts, backend)), run(with_casts), strict=True):
        assert actual is wanted or (actual.dtype is wanted.dtype and torch.equal(actual, wanted))
