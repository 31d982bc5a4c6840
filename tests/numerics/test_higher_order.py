"""Gradients of gradients, to any order, mixed with eager code; `gradcheck` and `gradgradcheck` of many functions.

Tests with many calls or graphs use eager halves; other tests compare the values through Inductor.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import aotgrad
from aotgrad import torch_compat
from aotgrad.graph.autograd_nodes import autograd_nodes
from aotgrad.telemetry.observer import record_stages
from tests.device import new_generator

from .against_eager import ALL, COMPILERS, DYNAMO_BACKENDS, THROUGH_INDUCTOR, assert_matches, compiled
from .conftest import EveryGraph

EYE = torch.eye(3, dtype=torch.float64)
MATRIX, IMAGE, VOLUME = (3, 4), (1, 2, 5, 5), (1, 1, 3, 3, 3)


def symmetric(x):
    return x @ x.mT + 2 * EYE


def with_target(loss, *sizes):
    """A loss against a fixed target."""
    target = torch.linspace(0.1, 0.9, 12, dtype=torch.float64).view(*(sizes or MATRIX))
    return lambda x: loss(x, target)


CLASSES = torch.tensor([0, 2, 1])

FUNCTIONS = {
    # activations
    "celu": (F.celu, MATRIX),
    "elu": (F.elu, MATRIX),
    "gelu": (F.gelu, MATRIX),
    "gelu_tanh": (functools.partial(F.gelu, approximate="tanh"), MATRIX),
    "glu": (F.glu, MATRIX),
    "hardswish": (F.hardswish, MATRIX),
    "hardtanh": (F.hardtanh, MATRIX),
    "leaky_relu": (F.leaky_relu, MATRIX),
    "logsigmoid": (F.logsigmoid, MATRIX),
    "log_softmax": (functools.partial(F.log_softmax, dim=-1), MATRIX),
    "mish": (F.mish, MATRIX),
    "prelu": (F.prelu, MATRIX, (1,)),
    "relu": (F.relu, MATRIX),
    "selu": (F.selu, MATRIX),
    "sigmoid": (torch.sigmoid, MATRIX),
    "silu": (F.silu, MATRIX),
    "softmax": (functools.partial(F.softmax, dim=-1), MATRIX),
    "softplus": (F.softplus, MATRIX),
    "softsign": (F.softsign, MATRIX),
    "tanh": (torch.tanh, MATRIX),
    "tanhshrink": (F.tanhshrink, MATRIX),
    # pointwise and reductions
    "amax": (lambda x: x.amax(0), MATRIX),
    "atan2": (torch.atan2, MATRIX, MATRIX),
    "cumprod": (lambda x: x.cumprod(1), MATRIX),
    "cumsum": (lambda x: x.cumsum(1).sin(), MATRIX),
    "erf": (torch.erf, MATRIX),
    "exp": (torch.exp, MATRIX),
    "lerp": (torch.lerp, MATRIX, MATRIX, MATRIX),
    "log": (lambda x: x.abs().log(), MATRIX),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), MATRIX),
    "logsumexp": (lambda x: x.logsumexp(1), MATRIX),
    "norm": (lambda x: x.norm(dim=1), MATRIX),
    "pow": (lambda x, y: (x.abs() + 0.1) ** y, MATRIX, MATRIX),
    "prod": (lambda x: x.prod(1), MATRIX),
    "rsqrt": (lambda x: (x * x + 1).rsqrt(), MATRIX),
    "std": (lambda x: x.std(1), MATRIX),
    "var": (lambda x: x.var(0), MATRIX),
    "where": (lambda x, y: torch.where(x > y, x.sin(), y.exp()), MATRIX, MATRIX),
    # norms
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (4, 3), (3,), (3,)),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w), (2, 4, 3), (4,)),
    "instance_norm": (F.instance_norm, (2, 2, 5)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), MATRIX, (4,), (4,)),
    "local_response_norm": (lambda x: F.local_response_norm(x, 2), (1, 3, 4)),
    "normalize": (F.normalize, MATRIX),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), MATRIX, (4,)),
    # attention and linear maps
    "attention": (lambda q, k, v: (q @ k.mT).softmax(-1) @ v, (3, 4), (5, 4), (5, 2)),
    "attention_of_norm": (lambda x, w, v: F.layer_norm(x @ w, (4,)).softmax(-1) @ v, MATRIX, (4, 4), (4, 2)),
    "attention_masked": (
        lambda q, k: (q @ k.mT).masked_fill(torch.ones(3, 3).tril() == 0, -torch.inf).softmax(-1) @ k,
        (3, 4),
        (3, 4),
    ),
    "baddbmm": (torch.baddbmm, (2, 3, 2), (2, 3, 4), (2, 4, 2)),
    "bilinear": (F.bilinear, (2, 3), (2, 2), (2, 3, 2)),
    "einsum": (functools.partial(torch.einsum, "ij,kj->ik"), MATRIX, (2, 4)),
    "linear": (F.linear, MATRIX, (2, 4), (2,)),
    # convolutions
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), (1, 2, 5), (3, 2, 3)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2), IMAGE, (2, 2, 3, 3), (2,)),
    "conv3d": (F.conv3d, VOLUME, (1, 1, 2, 2, 2)),
    "conv_depthwise": (lambda x, w: F.conv2d(x, w, groups=2), IMAGE, (2, 1, 2, 2)),
    "conv_dilated": (lambda x, w: F.conv2d(x, w, dilation=2), IMAGE, (1, 2, 2, 2)),
    "conv_transpose2d": (F.conv_transpose2d, (1, 2, 3, 3), (2, 2, 2, 2)),
    # pooling, padding, resampling
    "adaptive_avg_pool": (lambda x: F.adaptive_avg_pool2d(x, 2), IMAGE),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2).sin(), IMAGE),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True), (1, 1, 3, 3)),
    "lp_pool": (lambda x: F.lp_pool1d(x.abs() + 1, 2, 2), (1, 2, 6)),
    "max_pool": (lambda x: F.max_pool2d(x, 2), IMAGE),
    "pad": (lambda x: F.pad(x, (1, 2), mode="reflect").sin(), MATRIX),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2).exp(), (1, 4, 2, 2)),
    # indexing
    "embedding": (lambda w: F.embedding(CLASSES, w).sin(), MATRIX),
    "gather": (lambda x: x.gather(1, CLASSES.view(3, 1)).exp(), MATRIX),
    "index_select": (lambda x: x[CLASSES].sin(), MATRIX),
    "scatter_add": (lambda x, y: x.scatter_add(0, CLASSES.view(3, 1).expand(3, 4), y).sin(), MATRIX, MATRIX),
    # losses
    "binary_cross_entropy": (lambda x: with_target(F.binary_cross_entropy)(x.sigmoid()), MATRIX),
    "cosine_similarity": (F.cosine_similarity, MATRIX, MATRIX),
    "cross_entropy": (lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.1), MATRIX),
    "huber_loss": (with_target(F.huber_loss), MATRIX),
    "kl_div": (lambda x: with_target(functools.partial(F.kl_div, reduction="sum"))(x.log_softmax(1)), MATRIX),
    "mse_loss": (with_target(F.mse_loss), MATRIX),
    "nll_loss": (lambda x: F.nll_loss(x.log_softmax(1), CLASSES), MATRIX),
    "poisson_nll_loss": (with_target(F.poisson_nll_loss), MATRIX),
    "smooth_l1_loss": (with_target(F.smooth_l1_loss), MATRIX),
    # linear algebra
    "cholesky": (lambda x: torch.linalg.cholesky(symmetric(x)), (3, 3)),
    "det": (lambda x: torch.linalg.det(x + 2 * EYE), (3, 3)),
    "eigvalsh": (lambda x: torch.linalg.eigvalsh(symmetric(x)), (3, 3)),
    "inverse": (lambda x: torch.linalg.inv(symmetric(x)), (3, 3)),
    "matrix_exp": (torch.linalg.matrix_exp, (3, 3)),
    "matrix_power": (lambda x: torch.linalg.matrix_power(x, 3), (3, 3)),
    "pinv": (torch.linalg.pinv, (3, 3)),
    "slogdet": (lambda x: torch.linalg.slogdet(symmetric(x))[1], (3, 3)),
    "solve": (lambda x, b: torch.linalg.solve(symmetric(x), b), (3, 3), (3, 2)),
    "svdvals": (torch.linalg.svdvals, (3, 3)),
    # complex numbers
    "fft": (lambda x: torch.fft.rfft(x).abs(), MATRIX),
    "view_as_complex": (lambda x: torch.view_as_complex(x.view(3, 2, 2)).exp().real, MATRIX),
}


def doubles(*shapes):
    generator = new_generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def test_there_are_enough_functions() -> None:
    assert len(FUNCTIONS) >= 60


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_derivatives(name: str) -> None:
    function, *shapes = FUNCTIONS[name]
    under_test = aotgrad.aot_function(function, aotgrad.nop)
    assert torch.autograd.gradcheck(under_test, doubles(*shapes))
    assert torch.autograd.gradgradcheck(under_test, doubles(*shapes))


def assert_derivatives_match(under_test, function, *shapes) -> None:
    """`None` where eager has `None`, and equal otherwise: the forward's values are reused, not recomputed."""

    def derivatives(function):
        inputs = doubles(*shapes)
        first = torch.autograd.grad(squares(function(*inputs)), inputs, create_graph=True)
        return *first, *torch.autograd.grad(squares(first), inputs, allow_unused=True)

    def squares(results):
        return sum(result.square().sum() for result in (results if isinstance(results, tuple) else (results,)))

    expected = derivatives(function)
    for _ in range(2):
        for actual, wanted in zip(derivatives(under_test), expected, strict=True):
            assert (actual is None) == (wanted is None)
            if actual is not None:
                torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives_are_those_of_eager(name: str) -> None:
    function, *shapes = FUNCTIONS[name]
    assert_derivatives_match(aotgrad.aot_function(function, aotgrad.nop), function, *shapes)


BY_INDUCTOR = (
    "amax",
    "attention_of_norm",
    "batch_norm",
    "conv2d",
    "cumprod",
    "fft",
    "gather",
    "gelu",
    "layer_norm",
    "lp_pool",
    "max_pool",
    "nll_loss",
    "prelu",
    "scatter_add",
    "slogdet",
    "softplus",
    "var",
    "where",
)


@pytest.mark.parametrize("name", BY_INDUCTOR)
def test_second_derivatives_through_inductor(name: str) -> None:
    """For functions of all kinds; the operator sweep (scripts/conformance/ops.py) covers the others."""
    function, *shapes = FUNCTIONS[name]
    assert_derivatives_match(aotgrad.aot_function(function, EveryGraph()), function, *shapes)


def test_second_derivatives_of_several_functions_in_one_region() -> None:
    group = [FUNCTIONS[name] for name in ("huber_loss", "det", "kl_div")]

    def function(*inputs):
        return tuple(function(x) for (function, _), x in zip(group, inputs, strict=True))

    assert_derivatives_match(aotgrad.aot_function(function, EveryGraph()), function, *(shape for _, shape in group))


# --- orders, and eager code around -----------------------------------------------------------------------------------


def derivatives_to_order(function, order: int) -> list[torch.Tensor]:
    """Derivatives of a function between two pieces of eager code."""
    (x,) = doubles((3,))
    value, found = function(x.exp()).sin().sum(), []
    for _ in range(order):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        found.append(gradient)
        value = gradient.square().sum()
    return found


@pytest.mark.parametrize("backend", ALL)
def test_any_order(backend: str) -> None:
    def function(x):
        return x.tanh() * x.cos()

    order = 3 if backend in THROUGH_INDUCTOR else 4
    expected = derivatives_to_order(function, order)
    for actual, wanted in zip(derivatives_to_order(compiled(function, backend), order), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True:UserWarning")
def test_backward_with_create_graph(halves) -> None:
    def run(function):
        x, w = doubles((3, 4), (4, 2))
        function(x, w).sum().backward(create_graph=True)
        gradients = [x.grad, w.grad]
        x.grad = w.grad = None
        sum(gradient.square().sum() for gradient in gradients).backward()
        return [*gradients, x.grad, w.grad]

    def function(x, w):
        return (x @ w).sigmoid()

    for actual, wanted in zip(run(aotgrad.aot_function(function, halves)), run(function), strict=True):
        torch.testing.assert_close(actual, wanted)


def test_every_differentiable_input_and_the_tangent(halves) -> None:
    """The second derivative reaches parameters, data and the tangent of the first gradient."""

    def run(function):
        x, w, tangent = doubles((3, 4), (4, 2), (3, 2))
        first = torch.autograd.grad(function(x, w), [x, w], tangent, create_graph=True)
        return torch.autograd.grad(sum(gradient.sin().sum() for gradient in first), [x, w, tangent])

    def function(x, w):
        return (x @ w).tanh()

    for actual, wanted in zip(run(aotgrad.aot_function(function, halves)), run(function), strict=True):
        torch.testing.assert_close(actual, wanted)


def test_nothing_is_compiled_for_orders_that_nobody_asks_for(halves) -> None:
    function = aotgrad.aot_function(lambda x: x.tanh(), halves)
    (x,) = doubles((3,))
    before = aotgrad.counters["compilations"]
    for _ in range(2):
        function(x).sum().backward()
    assert aotgrad.counters["compilations"] == before + 1
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    assert aotgrad.counters["compilations"] == before + 2
    torch.autograd.grad(first.sum(), x)
    assert aotgrad.counters["compilations"] == before + 2


def test_the_first_derivative_runs_no_product_twice() -> None:
    """The forward's saved values are inputs of the second-order function, which contains no forward op.

    The count is eager's; Inductor may express a product as another op.
    """

    def mlp(x, a, b, c):
        return ((x @ a).tanh() @ b).tanh() @ c

    x, *weights = doubles((8, 4), (4, 4), (4, 4), (4, 1))
    with record_stages() as stages:
        y = aotgrad.aot_function(mlp, aotgrad.nop)(x, *weights)
        torch.autograd.grad(y.sum(), x, create_graph=True)
    _, vjp = (stage.text.partition("def backward")[0] for stage in stages if stage.name == "partition")
    assert (vjp.count("aten.mm.default("), vjp.count("aten.tanh.default(")) == (3, 0)


def test_what_only_the_second_derivative_needs_is_not_computed_with_the_first() -> None:
    """The second derivative of a `relu` by its result is zeros, and so are products of it."""

    def mlp(x, a, b, c):
        return ((x @ a).relu() @ b).relu() @ c

    inputs = doubles((8, 4), (4, 4), (4, 4), (4, 1))
    with record_stages() as stages:
        y = compiled(mlp, "inductor")(*inputs)
        torch.autograd.grad(y.sum(), inputs[0], create_graph=True)
    _, vjp = (stage.text.partition("def backward")[0] for stage in stages if stage.name == "partition")
    assert vjp.count("aten.mm.default(") <= 3


def test_the_second_derivative_saves_no_masks() -> None:
    """They are recomputed from values that the first order saved: these are alive, and the caller cannot write to them."""

    def mlp(x, a, b, c):
        return ((x @ a).relu() @ b).relu() @ c

    inputs = doubles((8, 4), (4, 4), (4, 4), (4, 1))
    with record_stages() as stages:
        y = compiled(mlp, "inductor")(*inputs)
        torch.autograd.grad(y.sum(), inputs[0], create_graph=True)
    _, vjp = (stage.text for stage in stages if stage.name == "partition")
    forward, _, backward = vjp.partition("def backward")
    assert "aten.le.Scalar(" in forward and "aten.le.Scalar(" in backward


def gelu_mlp(x, a, b, c):
    return F.gelu(F.gelu(x @ a) @ b) @ c


def test_the_second_order_takes_values_that_other_gradients_need() -> None:
    """The results of `gelu` are saved for the gradients of the weights: a first derivative by `x` takes them, too.

    Where ops fuse, they are recomputed, in the derivative, too.
    """
    x, *weights = doubles((8, 4), (4, 4), (4, 4), (4, 1))
    with record_stages() as stages:
        y = aotgrad.aot_function(gelu_mlp, "eager")(x, *weights)
        torch.autograd.grad(y.sum(), x, create_graph=True)
    texts = [stage.text for stage in stages if stage.name == "partition"]
    assert [text.count("aten.gelu.default(") for text in texts] == [2, 0]


def held_bytes(results, others) -> int:
    """The bytes that the autograd graph of `results` keeps alive alone."""
    found: dict[int, int] = {}
    for node in autograd_nodes(results):
        is_custom = torch_compat.is_custom_node(node)
        saved = torch_compat.saved_by_function(node) if is_custom else torch_compat.saved_tensors(node)
        primals = getattr(getattr(node, "recomputation", None), "primals", ())
        found.update((t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in (*saved, *primals))
    elsewhere = {tensor.untyped_storage().data_ptr() for tensor in others}
    return sum(size for address, size in found.items() if address not in elsewhere)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_first_derivative_keeps_no_more_alive_than_in_eager(dynamic: bool) -> None:
    def first(function, x, *weights) -> int:
        y = function(x, *weights)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return held_bytes([y, slope], [x, *weights, y, slope])

    inputs = doubles((8, 4), (4, 4), (4, 4), (4, 1))
    under_test = aotgrad.aot_function(gelu_mlp, aotgrad.nop, options={"dynamic": dynamic})
    assert 0 < first(under_test, *inputs) <= first(gelu_mlp, *inputs)


def test_a_value_that_the_first_derivative_does_not_need_may_be_changed(halves) -> None:
    """The second order then computes it again. (Eager raises: each of its nodes checks all that it saved.)"""

    def run(function, overwrite: bool):
        inputs = doubles((3, 4), (4, 4), (4, 4))
        z, y = function(*inputs)
        if overwrite:
            z.mul_(2)
        (first,) = torch.autograd.grad(y.sum(), inputs[0], create_graph=True)
        return first, *torch.autograd.grad(first.square().sum(), inputs)

    def function(x, w, v):
        z = (x @ w).sin()
        return z.detach(), (z @ v).sin()

    for one, wanted in zip(run(aotgrad.aot_function(function, halves), True), run(function, False), strict=True):
        torch.testing.assert_close(one, wanted)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run(function, True)


def test_a_result_that_the_caller_overwrites_between_two_orders(halves) -> None:
    """The first order saves the value, and it is an input of the second order; eager's error protects both."""

    def run(function):
        x, w = doubles((3, 4), (4, 4))
        y = function(x, w)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(first.sum(), w)

    def function(x, w):
        return (x @ w).relu().exp()

    run(function)
    run(aotgrad.aot_function(function, halves))


def test_third_order_takes_values_of_both_earlier_orders(halves) -> None:
    def run(function):
        x, w = doubles((3, 4), (4, 4))
        (first,) = torch.autograd.grad(function(x, w).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        return torch.autograd.grad(second.square().sum(), [x, w])

    def function(x, w):
        return ((x @ w).tanh() @ w).tanh()

    with record_stages() as stages:
        actual = run(aotgrad.aot_function(function, halves))
    for one, wanted in zip(actual, run(function), strict=True):
        torch.testing.assert_close(one, wanted)
    forwards = [stage.text.partition("def backward")[0] for stage in stages if stage.name == "partition"]
    assert [text.count("aten.tanh.default(") for text in forwards] == [2, 0, 0]


# --- with respect to results -----------------------------------------------------------------------------------------

RETURNING = {
    "an_intermediate": lambda x, w: ((z := x @ w).sin(), z),
    "its_own_result": lambda x, w: ((x @ w).exp(), x.cos()),
    "a_chain": lambda x, w: ((z := (x @ w).tanh()), (y := z.exp() * x), y.sin()),
    "a_trunk": lambda x, w: ((z := x @ w), (h := z.tanh()).sin(), h.cos()),
    "views": lambda x, w: ((z := x @ w)[0], z[1], z.exp()),
    "a_view": lambda x, w: ((z := x @ w), z.view(-1).sin(), z.exp()),
}


def with_respect_to_results(function, root: int, of: int, keep: bool = True):
    """Second and third derivatives with respect to a result and to the inputs."""
    x, w = doubles((2, 2), (2, 2))
    outputs = function(x, w)
    root, of = outputs[root % len(outputs)], outputs[of % len(outputs)]
    if not keep:
        del outputs
    (first,) = torch.autograd.grad(root.sin().sum(), x, create_graph=True)
    wanted = (of, x, w)
    second = torch.autograd.grad(first.sin().sum(), wanted, allow_unused=True, create_graph=True)
    terms = [gradient.sin().sum() for gradient in second if gradient is not None and gradient.requires_grad]
    third = torch.autograd.grad(sum(terms), wanted, allow_unused=True) if terms else []
    return [first, *second, *third]


@pytest.mark.parametrize("name", RETURNING)
@pytest.mark.parametrize("root", range(3))
@pytest.mark.parametrize("of", range(3))
@pytest.mark.parametrize("keep", [True, False])
def test_gradients_of_gradients_with_respect_to_results(name: str, root: int, of: int, keep: bool) -> None:
    """`None` where eager has `None`: values computed from a result pass their gradients to it, not around it."""
    expected = with_respect_to_results(RETURNING[name], root, of, keep)
    under_test = aotgrad.aot_function(RETURNING[name], aotgrad.nop)
    for _ in range(2):
        for actual, wanted in zip(with_respect_to_results(under_test, root, of, keep), expected, strict=True):
            assert (actual is None) == (wanted is None)
            if actual is not None:
                torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", RETURNING)
def test_gradients_of_gradients_with_respect_to_results_through_inductor(name: str) -> None:
    """One plan serves gradients of any result."""
    under_test = compiled(RETURNING[name], "aot_inductor")
    for root, of in itertools.product(range(2), range(3)):
        found, expected = (with_respect_to_results(f, root, of) for f in (under_test, RETURNING[name]))
        assert_matches(found, expected, "aot_inductor", inductor_rtol=1e-10)


def test_a_result_that_the_caller_changed_is_no_longer_what_was_computed(halves) -> None:
    def run(function):
        x, w = doubles((2, 2), (2, 2))
        d, z = function(x, w)
        (first,) = torch.autograd.grad(d.sum(), x, create_graph=True, retain_graph=True)
        z = z.mul_(2)
        return [first, *torch.autograd.grad(first.sin().sum(), (z, x, w), allow_unused=True)]

    def function(x, w):
        z = x @ w
        return z**2, z.clone()

    for actual, wanted in zip(run(aotgrad.aot_function(function, halves)), run(function), strict=True):
        assert (actual is None) == (wanted is None)
        if actual is not None:
            torch.testing.assert_close(actual, wanted)


# --- state: random numbers, buffers, changed inputs, memory ----------------------------------------------------------


def two_masks(x):
    return F.dropout(x, 0.5) ** 2, F.dropout(x, 0.3) ** 3


@pytest.mark.usefixtures("eagers_numbers")
@pytest.mark.parametrize("used", [0, 1])
def test_masks_are_those_of_the_forward(halves, used: int) -> None:
    """Also if only the second output is differentiated; the generator has eager's state."""

    def run(function):
        (x,) = doubles((20,))
        torch.manual_seed(1)
        y = function(x)[used]
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
        return y, first, second, *torch.autograd.grad(second.sum(), x), torch.rand(2)

    for actual, wanted in zip(run(aotgrad.aot_function(two_masks, halves)), run(two_masks), strict=True):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("backend", THROUGH_INDUCTOR)
def test_inductors_masks_are_those_of_its_forward(backend: str) -> None:
    (x,) = doubles((200,))
    y = compiled(lambda x: F.dropout(x, 0.5) ** 2, backend)(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(y == 0, first == 0) and torch.equal(y == 0, second == 0)


def test_buffers_are_updated_once(halves) -> None:
    def run(transform):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Tanh()).double()
        (x,) = doubles((5, 4))
        (slope,) = torch.autograd.grad(transform(model)(x).square().sum(), x, create_graph=True)
        gradients = torch.autograd.grad(slope.square().sum(), list(model.parameters()), allow_unused=True)
        return [*gradients, *model.buffers()]

    compile_module = functools.partial(aotgrad.aot_module, fw_compiler=halves)
    for actual, wanted in zip(run(compile_module), run(lambda model: model), strict=True):
        torch.testing.assert_close(actual, wanted)


EIGENVECTORS = {
    "eigh": lambda x: torch.linalg.eigh(x + x.mH)[1],
    "eig": lambda x: torch.linalg.eig(x),
    "svd": lambda x: torch.linalg.svd(x),
    "left singular vectors": lambda x: torch.linalg.svd(x)[0],
    "left singular vectors and values": lambda x: torch.linalg.svd(x)[1::-1],
}


COMPILED_AS = [("eager halves", 1), ("eager halves", 2), ("inductor halves", 1)]
"""Segments do not change what Inductor makes of a graph; where it takes long, it compiles one alone."""


@pytest.mark.parametrize("depends_on_phase", [False, True])
@pytest.mark.parametrize(("halves", "segments"), COMPILED_AS, indirect=["halves"])
@pytest.mark.parametrize("function", EIGENVECTORS.values(), ids=EIGENVECTORS)
def test_second_gradients_of_complex_eigenvectors(halves, function, segments: int, depends_on_phase: bool) -> None:
    """Only their whole gradient is checked: each part of it depends on their phase."""

    def second(function):
        torch.manual_seed(0)
        x = torch.randn(3, 3, dtype=torch.complex128, requires_grad=True)
        results = function(x)
        results = [results] if isinstance(results, torch.Tensor) else results
        (first,) = torch.autograd.grad(sum(result.abs().pow(3).sum() for result in results), x, create_graph=True)
        loss = first.abs().pow(2).sum() + (results[-1].real.sum() if depends_on_phase else 0)
        return first, *torch.autograd.grad(loss, x)

    under_test = aotgrad.aot_function(function, halves, options={"grad_segments": segments})
    if not depends_on_phase:
        torch.testing.assert_close(second(under_test), second(function))
        return
    for each in (function, under_test):
        with pytest.raises(RuntimeError, match="in the complex case are specified up to"):
            second(each)


HERMITIAN = {
    "eigenvectors": lambda x: torch.linalg.eigh(x + x.mH)[1].abs(),
    "eigenvectors, times two": lambda x: torch.linalg.eigh(x + x.mH)[1] * 2,
    "both": lambda x: torch.linalg.eigh(x + x.mH),
}


@pytest.mark.parametrize(("halves", "segments"), COMPILED_AS, indirect=["halves"])
@pytest.mark.parametrize("function", HERMITIAN.values(), ids=HERMITIAN)
def test_third_gradients_of_a_complex_eigh(halves, function, segments: int) -> None:
    """Second order only through Inductor: a third derivative takes its compiler half a minute."""
    order = 3 if halves is aotgrad.nop else 2

    def run(function):
        torch.manual_seed(0)
        x = torch.randn(3, 3, dtype=torch.complex128, requires_grad=True)
        results = function(x)
        results = [results] if isinstance(results, torch.Tensor) else results
        found = [sum(result.abs()[0].sum() for result in results)]
        for _ in range(order):
            found += torch.autograd.grad(found[-1].abs().square().sum(), x, create_graph=True)
        return found

    under_test = aotgrad.aot_function(function, halves, options={"grad_segments": segments})
    for actual, wanted in zip(run(under_test), run(function), strict=True):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("segments", [2, 3, 4, 8, "auto"])
@pytest.mark.parametrize("grad_mode", ["create_graph", "watched"])
def test_batch_norms_in_segments(segments: int | str, grad_mode: str) -> None:
    """Each segment recomputes the ones before it, and the backward of a training step reads no running statistic."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 2, 2), nn.BatchNorm2d(2), nn.Sigmoid()]
    model = nn.Sequential(*layers).double()
    compiled_model = aotgrad.aot_module(copy.deepcopy(model), aotgrad.nop, options={"grad_segments": segments})

    def step(function, parameters):
        (x,) = doubles((4, 2, 5, 5))
        y = function(x)
        with contextlib.nullcontext() if grad_mode == "create_graph" else Watching():
            (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return y, slope, *torch.autograd.grad(slope.square().sum() + y.sum(), [x, *parameters])

    for _ in range(2):
        found = step(compiled_model, list(compiled_model.parameters()))
        torch.testing.assert_close(found, step(model, list(model.parameters())))
    torch.testing.assert_close(list(compiled_model.buffers()), list(model.buffers()))


NORMS = {
    "usual": nn.BatchNorm1d,
    "average over all batches": functools.partial(nn.BatchNorm1d, momentum=None),
    "plain": functools.partial(nn.BatchNorm1d, affine=False),
    "no statistics": functools.partial(nn.BatchNorm1d, track_running_stats=False),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("name", "backend"), [*((n, b) for n in NORMS for b in ("nop", "dynamo")), *(("usual", b) for b in THROUGH_INDUCTOR)]
)
def test_batch_norms_differentiated_twice(name: str, backend: str, dynamic: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), NORMS[name](3), nn.Tanh()).double()
    if backend in COMPILERS:
        under_test = aotgrad.aot_module(copy.deepcopy(model), COMPILERS[backend], dynamic=dynamic)
    else:
        torch._dynamo.reset()
        under_test = torch.compile(copy.deepcopy(model), backend=DYNAMO_BACKENDS[backend], dynamic=dynamic)

    def step(model, rows):
        (x,) = doubles((rows, 4))
        y = model(x)
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        wanted = [x, *model.parameters()]
        return y, slope, *torch.autograd.grad(slope.square().sum() + y.sum(), wanted, allow_unused=True)

    for rows in (5, 6, 5):
        torch.testing.assert_close(step(under_test, rows), step(model, rows))
        torch.testing.assert_close(list(under_test.buffers()), list(model.buffers()))


@pytest.mark.parametrize("changed", range(3))
@pytest.mark.parametrize("backend", ["nop", "dynamo", *THROUGH_INDUCTOR])
def test_what_is_changed_before_a_derivative_of_symbolic_size(backend: str, changed: int) -> None:
    """Sizes are inputs of Dynamo's graphs but not of a vjp: each mutation still applies to its own input."""

    def function(x, w, v):
        return (x * w).sum(0, keepdim=True).expand_as(x) * v

    def first(function):
        torch.manual_seed(0)
        x, *others = [torch.randn(3, 4, requires_grad=True), torch.randn(3, 4), torch.randn(3, 4)]
        y = function(x, *others)
        with torch.no_grad():
            [x, *others][changed].add_(1)
        return torch.autograd.grad(y.sum(), x, create_graph=True)[0]

    under_test = compiled(function, backend, dynamic=True)
    if changed == 0:
        torch.testing.assert_close(first(under_test), first(function))
        return
    for each in (function, under_test):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            first(each)


def test_a_changed_input_whose_old_value_is_asked_for(halves) -> None:
    """The recomputation depends on the value before the mutation."""

    def function(x, count):
        y = x.exp() if count.item() < 2 else x.sin()
        count.add_(1)
        return y * count

    def run(function):
        (x,), count, found = doubles((3,)), torch.tensor(0), []
        for _ in range(4):
            (first,) = torch.autograd.grad(function(x, count).square().sum(), x, create_graph=True)
            found += [first, *torch.autograd.grad(first.sum(), x), count.clone()]
        return found

    torch.testing.assert_close(run(aotgrad.aot_function(function, halves)), run(function))


def test_a_changed_input_whose_old_value_is_needed_is_a_clear_error(halves) -> None:
    (x,) = doubles((3,))
    changed = x * 1
    y = aotgrad.aot_function(lambda x: x.mul_(2).sin(), halves)(changed)
    assert torch.autograd.grad(y.sum(), x, retain_graph=True)[0] is not None
    with pytest.raises(aotgrad.errors.HigherOrderError, match="input 0 had before"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_a_saved_value_changed_before_is_eagers_error(halves) -> None:
    """An output that the backward needs."""
    (x,) = doubles((3,))
    for function in (torch.exp, aotgrad.aot_function(torch.exp, halves)):
        y = function(x)
        y.detach().zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y.sum(), x, create_graph=True)


def test_hooks_of_inputs_run_once(halves) -> None:
    def run(function):
        (x,) = doubles((3,))
        calls = []
        x.register_hook(lambda gradient: calls.append(gradient.detach()))
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        torch.autograd.grad(first.sum(), x)
        return calls

    def function(x):
        return x.exp() * x

    actual, expected = run(aotgrad.aot_function(function, halves)), run(function)
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_memory_is_freed_with_the_gradients(halves) -> None:
    function = aotgrad.aot_function(lambda x, w: (x @ w).tanh(), halves)
    for _ in range(2):
        x, w = doubles((3, 4), (4, 2))
        y = function(x, w)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), w)
        watched = [weakref.ref(tensor) for tensor in (x, w, y, first, second)]
        del x, w, y, first, second
        assert [reference() for reference in watched] == [None] * 5


def test_a_gradient_taken_inside_the_region(halves) -> None:
    def energy_and_force(x):
        energy = (x.tanh() * x).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, force

    def run(function):
        (x,) = doubles((3,))
        energy, force = function(x)
        return energy, force, *torch.autograd.grad(energy + force.square().sum(), x)

    under_test = aotgrad.aot_function(energy_and_force, halves)
    for actual, wanted in zip(run(under_test), run(energy_and_force), strict=True):
        torch.testing.assert_close(actual, wanted)


def test_a_result_whose_graph_a_gradient_inside_the_region_frees(halves) -> None:
    """Eager raises where the gradient of the result is computed. Nobody has to ask for it."""

    def slope_and_curvature(x, keep=None):
        (slope,) = torch.autograd.grad((x.tanh() * x).sum(), x, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), x, retain_graph=keep)
        return slope, curvature

    (x,) = doubles((3,))
    actual, wanted = aotgrad.aot_function(slope_and_curvature, halves)(x), slope_and_curvature(x, keep=True)
    gradients = (torch.autograd.grad(slope.exp().sum(), x) for slope, _ in (actual, wanted))
    for result, expected in zip((*actual, *next(gradients)), (*wanted, *next(gradients)), strict=True):
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("backend", ALL)
def test_derivatives_of_a_sparse_gradient(backend: str) -> None:
    index = torch.tensor([0, 2, 2])

    def cubes(w):
        return F.embedding(index, w, sparse=True).pow(3)

    def run(function):
        (w,) = doubles((4, 2))
        (first,) = torch.autograd.grad(function(w).sum(), w, create_graph=True)
        (second,) = torch.autograd.grad(first.to_dense().pow(2).sum(), w)
        return first, second

    under_test = compiled(cubes, backend)
    for _ in range(2):
        for actual, wanted in zip(run(under_test), run(cubes), strict=True):
            assert actual.layout is wanted.layout is torch.sparse_coo and actual.requires_grad == wanted.requires_grad
            assert_matches(actual.to_dense(), wanted.to_dense(), backend)


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_an_old_value_is_needed_under_a_mode_too(halves) -> None:
    """There a derivative runs op by op, and would use the new value for the old one."""

    def function(x, factor, count, mean, var):
        factor.mul_(2)
        count.add_(1)
        return F.batch_norm(x * x * factor, mean, var, training=True)

    def run(function):
        (x,) = doubles((3, 2))
        statistics = [torch.zeros(2).double(), torch.ones(2).double()]
        y = function(x, torch.full((2,), 3.0).double(), torch.tensor(0), *statistics)
        with Watching():
            return torch.autograd.grad(y.square().sum(), x, create_graph=True)[0]

    with pytest.raises(aotgrad.errors.HigherOrderError, match="input 1 had before"):
        run(aotgrad.aot_function(function, halves))

    def only_statistics(x, factor, count, mean, var):
        count.add_(1)
        return F.batch_norm(x * x * factor, mean, var, training=True)

    torch.testing.assert_close(run(aotgrad.aot_function(only_statistics, halves)), run(only_statistics))


@pytest.mark.parametrize("backend", ["nop", "dynamo", *THROUGH_INDUCTOR])
def test_a_batch_norm_whose_result_is_computed_again(backend: str) -> None:
    """Its new running statistics do not prevent it: the result of a training step does not depend on them."""

    def function(x, weight, mean, var):
        return F.batch_norm(x, mean, var, weight, training=True).pow(2)

    def run(function):
        x, weight = doubles((4, 3), (3,))
        statistics = torch.zeros(3).double(), torch.ones(3).double()
        y = function(x, weight, *statistics)
        (first,) = torch.autograd.grad(y.sum(), weight, create_graph=True)
        return first, *torch.autograd.grad(first.sum(), x), *statistics

    for actual, wanted in zip(run(compiled(function, backend)), run(function), strict=True):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("backend", DYNAMO_BACKENDS)
def test_a_gradient_taken_where_dynamo_has_broken_the_graph(backend: str) -> None:
    """Dynamo is active there; it must not compile parts of the backward that it meets."""

    def function(x):
        with torch.enable_grad():
            (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return first * x

    def run(function):
        (x,) = doubles((3,))
        function(x).sum().backward()
        return x.grad

    torch._dynamo.reset()
    assert_matches(run(torch.compile(function, backend=DYNAMO_BACKENDS[backend])), run(function), backend)


@pytest.mark.usefixtures("eagers_numbers")
@pytest.mark.parametrize("backend", DYNAMO_BACKENDS)
@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("with_dropout", [False, True])
def test_a_checkpoint_that_dynamo_keeps(with_dropout: bool, segments: int, backend: str) -> None:
    def function(x, w):
        def region(x):
            return F.dropout((x * w).exp(), 0.5, with_dropout).sin()

        return torch.utils.checkpoint.checkpoint(region, x, use_reentrant=False) * w

    def run(function):
        x, w = doubles((3,), (3,))
        torch.manual_seed(0)
        found = [function(x, w)]
        for _ in range(2 if backend in THROUGH_INDUCTOR else 3):
            found += torch.autograd.grad(found[-1].square().sum(), [x, w], create_graph=True)
        return found

    under_test = compiled(function, backend, options={"grad_segments": segments})
    for actual, wanted in zip(run(under_test), run(function), strict=True):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.usefixtures("eagers_numbers")
@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_random_numbers_that_a_memory_budget_draws_again(halves, budget: float) -> None:
    """A second-order function redraws from the state before the call, also if no mask is saved."""

    def function(x):
        return F.dropout(x.exp(), 0.5).sin()

    def run(function):
        (x,) = doubles((20000,))
        torch.manual_seed(0)
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return first, *torch.autograd.grad(first.sum(), x), torch.rand(2)

    with record_stages() as stages:
        found = run(aotgrad.aot_function(function, halves, options={"memory_budget": budget}))
    forwards = [stage.text for stage in stages if stage.name == "partition"]
    assert ("draw_and_record" in forwards[0]) == (budget == 0.0)
    for actual, wanted in zip(found, run(function), strict=True):
        torch.testing.assert_close(actual, wanted)
