"""Gradients on demand: `None` where eager has `None`, only the wanted ones, retained graphs, and gradients of gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import aotgrad
from aotgrad import native, torch_compat
from tests.device import new_generator

SMOOTH = {
    "attention": (lambda q, k: (q @ k.mT).softmax(-1) @ k, (3, 4), (5, 4)),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, training=True), (4, 3), (3,)),
    "convolution": (lambda x, w: F.conv1d(x, w).tanh(), (1, 2, 5), (3, 2, 2)),
    "gelu": (lambda x: F.gelu(x), (3,)),
    "inverse": (lambda x: torch.linalg.inv(x @ x.mT + torch.eye(3, dtype=x.dtype)), (3, 3)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w).sin(), (3, 4), (4,)),
    "linear": (lambda x, w: (x @ w).tanh(), (3, 4), (4, 2)),
    "two_outputs": (lambda x, y: (x * y, (x * 2).sin()), (3,), (3,)),
    "views_of_one_base": (lambda x: tuple((x * x).unbind()), (3, 2)),
}


def doubles(*shapes):
    generator = new_generator().manual_seed(0)
    return [torch.rand(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("name", SMOOTH)
def test_first_and_second_derivatives(halves, name: str) -> None:
    function, *shapes = SMOOTH[name]
    compiled = aotgrad.aot_function(function, halves)
    assert torch.autograd.gradcheck(compiled, doubles(*shapes))
    assert torch.autograd.gradgradcheck(compiled, doubles(*shapes))


def third_derivative(function) -> torch.Tensor:
    (x,) = doubles((3,))
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    return torch.autograd.grad((second**2).sum(), x)[0]


def test_third_derivative(halves) -> None:
    def quartic(x):
        return x**4

    torch.testing.assert_close(third_derivative(aotgrad.aot_function(quartic, halves)), third_derivative(quartic))


def dropout_and_gradients(function):
    (x,) = doubles((30,))
    torch.manual_seed(1)
    y = function(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y, first, torch.autograd.grad(first.sum(), x)[0]


def test_the_second_derivative_sees_the_mask_of_the_forward() -> None:
    def function(x):
        return F.dropout(x, 0.5) ** 3

    actual = dropout_and_gradients(aotgrad.aot_function(function, aotgrad.nop))
    for found, wanted in zip(actual, dropout_and_gradients(function), strict=True):
        torch.testing.assert_close(found, wanted)


def test_an_input_changed_before_a_second_derivative_is_noticed(halves) -> None:
    (x,) = doubles((3,))
    y = aotgrad.aot_function(lambda x: x**3, halves)(x)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.parametrize("function", [torch.mul, torch.add, lambda x, y: x.sin() + y], ids=["mul", "add", "sum"])
@pytest.mark.parametrize("y_requires_grad", [False, True])
@pytest.mark.parametrize("changed", [0, 1])
def test_an_input_whose_value_no_gradient_needs_may_change(halves, function, y_requires_grad, changed) -> None:
    def run(function, factor=2.0):
        inputs = doubles((3,), (3,))
        inputs[1].requires_grad_(y_requires_grad)
        output = function(*inputs)
        if factor != 1:
            with torch.no_grad():
                inputs[changed].mul_(factor)
        try:
            return torch.autograd.grad(output.sum(), inputs[0], create_graph=True)[0].tolist()
        except RuntimeError as error:
            return str(error).partition(":")[0]

    unchanged, computed = run(function, factor=1.0), run(aotgrad.aot_function(function, halves))
    if run(function) != unchanged and (function, changed) != (torch.mul, 0):
        assert computed == run(function)
    else:  # also where eager raises: the product saves both factors, and this gradient needs only the other one
        assert computed == unchanged


def test_a_gradient_that_no_used_output_needs_is_none(halves) -> None:
    x, a, b = doubles((3,), (3,), (3,))
    used, _ = aotgrad.aot_function(lambda x, a, b: (x * a, x * b), halves)(x, a, b)
    used.sum().backward()
    assert b.grad is None
    assert torch.equal(a.grad, x) and torch.equal(x.grad, a)


class CountProducts(TorchDispatchMode):
    """The number of matrix products that run."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def products_in_backward(function) -> int:
    x, v, w = doubles((3, 4), (4, 4), (4, 4))
    y = function(x, v, w)
    with CountProducts() as products:
        torch.autograd.grad(y.sum(), x)
    return products.count


def test_only_wanted_gradients_are_computed() -> None:
    def mlp(x, v, w):
        return (x @ v).tanh() @ w

    assert products_in_backward(aotgrad.aot_function(mlp, aotgrad.nop)) == products_in_backward(mlp) == 2


def stacked(*inputs: torch.Tensor) -> torch.Tensor:
    """Gradients that are views of one tensor, except the first two; the second needs a product."""
    return torch.stack(inputs[2:]).sum(0) * inputs[0].exp() @ inputs[1]


@pytest.mark.parametrize("count", [4, 40])
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (1, 3), (0, 2, 3), "all"])
def test_of_gradients_that_are_views_of_one_tensor_the_engine_is_asked_for_one(count, wanted, monkeypatch) -> None:
    asked = []
    ask = torch_compat.are_wanted
    monkeypatch.setattr(native, "library", lambda: None)  # C++ asks about all
    monkeypatch.setattr(torch_compat, "are_wanted", lambda nodes: asked.append(len(nodes)) or ask(nodes))
    found = []
    for function in (stacked, aotgrad.aot_function(stacked, aotgrad.nop)):
        inputs = [(torch.eye(2) * (k + 1)).requires_grad_() for k in range(count)]
        positions = range(count) if wanted == "all" else wanted
        output = function(*inputs)
        with CountProducts() as products:
            gradients = torch.autograd.grad(output.sum(), [inputs[k] for k in positions], retain_graph=True)
        output.sum().backward(inputs=[inputs[k] for k in positions])
        found.append([*gradients, *(x.grad for x in inputs), torch.tensor(products.count)])
    for ours, eagers in zip(found[1], found[0], strict=True):
        assert (ours is None) == (eagers is None) and (ours is None or torch.equal(ours, eagers))
    if wanted == "all" and count == 40:
        assert asked == [3, 3]


def test_gradients_of_one_tensor_by_nodes_that_save_different_values_are_asked_for_each(halves) -> None:
    def function(x, y, z):
        return x.view(-1) + y.exp().log() + z.view(-1)

    for call in (function, aotgrad.aot_function(function, halves)):
        x, y, z = (torch.ones(3, requires_grad=True) for _ in range(3))
        y = y * 1
        output = call(x, y, z)
        torch.autograd.grad(output.sum(), x, retain_graph=True)
        torch.autograd.grad(output.sum(), x)
        torch.autograd.grad(output.sum(), z)
        torch.autograd.grad(output.sum(), y)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(output.sum(), y)


def test_a_graph_may_be_kept_after_plain_steps(halves) -> None:
    compiled = aotgrad.aot_function(lambda x: x.exp(), halves)
    (x,) = doubles((3,))
    compiled(x).sum().backward()
    x.grad = None
    loss = compiled(x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * x.exp())
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_the_function_runs_once_in_each_call(halves) -> None:
    """It is traced in each call, since it changes a list, and no trace runs it twice."""
    runs = []

    def function(x):
        runs.append(1)
        return x.sin()

    compiled = aotgrad.aot_function(function, halves)
    for _ in range(2):
        compiled(*doubles((3,))).sum().backward()
    assert len(runs) == 2


def test_other_sharing_of_memory_in_a_later_call_is_compiled_anew_under_dynamo() -> None:
    torch._dynamo.reset()
    aotgrad.counters.clear()

    def function(x, y):
        x.add_(1)
        return x + y

    compiled = torch.compile(function, backend="aotgrad_eager")
    compiled(torch.ones(2), torch.ones(2))
    for cut in (1, 2, 1):
        expected, actual = torch.arange(6.0), torch.arange(6.0)
        assert torch.equal(compiled(actual[:3], actual[cut : cut + 3]), function(expected[:3], expected[cut : cut + 3]))
        assert torch.equal(actual, expected)
    assert (aotgrad.counters["compilations"], aotgrad.counters["fallbacks"]) == (3, 0)
