"""Backwards for many tangents at once: `is_grads_batched=True`, `torch.func.vmap` around a backward, Jacobians."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import aotgrad
from tests.device import new_generator

from .against_eager import AOT, compiled

BACKENDS = (*AOT, "dynamo", "inductor")

FUNCTIONS = {
    "convolution": (lambda x, w: F.gelu(F.conv2d(x, w)), (1, 2, 4, 4), (3, 2, 2, 2)),
    "embedding": (lambda w, x: F.embedding((x[:, 0] > 0).long(), w) * x, (4, 3), (3, 3)),
    "layer_norm": (lambda x, w: F.layer_norm(x @ w, (2,)).softmax(-1), (3, 4), (4, 2)),
    "linear": (lambda x, w: (x @ w).tanh(), (3, 4), (4, 2)),
    "reduction": (lambda x, w: (x.exp() * w).sum(0).logsumexp(-1), (3, 4), (4,)),
}
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def doubles(*shapes):
    generator = new_generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def basis(y: torch.Tensor) -> torch.Tensor:
    return torch.eye(y.numel(), dtype=y.dtype).view(y.numel(), *y.shape)


def assert_close(actual, expected) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@every_backend
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_of_the_jacobian_at_once(name: str, backend: str) -> None:
    function, *shapes = FUNCTIONS[name]
    inputs = doubles(*shapes)
    expected = torch.autograd.grad((y := function(*inputs)), inputs, basis(y), is_grads_batched=True)
    z = compiled(function, backend)(*inputs)
    before = aotgrad.counters["compilations"]
    for _ in range(2):
        assert_close(torch.autograd.grad(z, inputs, basis(z), is_grads_batched=True, retain_graph=True), expected)
    assert aotgrad.counters["compilations"] == before + 1, "compiled once, then cached"
    vmapped = torch.func.vmap(lambda tangent: torch.autograd.grad(z, inputs, tangent, retain_graph=True))
    assert_close(vmapped(basis(z)), expected)
    assert_close(torch.autograd.grad(z, inputs, basis(z)[0]), [gradient[0] for gradient in expected])


@every_backend
def test_only_some_gradients(backend: str) -> None:
    x, w = doubles((3, 4), (4, 2))
    y = compiled(lambda x, w: ((x @ w).tanh(), x.sin()), backend)(x, w)[0]
    (actual,) = torch.autograd.grad(y, x, basis(y), is_grads_batched=True)
    z = (x @ w).tanh()
    assert_close([actual], torch.autograd.grad(z, x, basis(z), is_grads_batched=True))


@pytest.mark.parametrize("backend", ["nop", "dynamo", "inductor"])
def test_second_order(backend: str) -> None:
    def run(function):
        (x,) = doubles((3,))
        y = function(x)
        (rows,) = torch.autograd.grad(y, x, basis(y), is_grads_batched=True, create_graph=True)
        return rows, *torch.autograd.grad((rows**2).sum(), x)

    def function(x):
        return x.sin().cumsum(0) * x

    assert_close(run(compiled(function, backend)), run(function))


def test_a_vmap_in_a_vmap(halves) -> None:
    (x,) = doubles((3,))
    y = aotgrad.aot_function(lambda x: x.sin(), halves)(x)
    rows = torch.func.vmap(torch.func.vmap(lambda tangent: torch.autograd.grad(y, x, tangent, retain_graph=True)[0]))
    tangents = basis(y).expand(2, 3, 3)
    assert_close([rows(tangents)], [x.cos().diag().expand(2, 3, 3)])


@pytest.mark.parametrize("dimension", [1, 2])
def test_batches_and_tangents_that_are_not_contiguous(halves, dimension: int) -> None:
    (x,) = doubles((2, 3))
    y = aotgrad.aot_function(lambda x: (x @ x.mT).view(-1).sin(), halves)(x)
    tangents = torch.randn(4, 5, 5, dtype=y.dtype).transpose(0, dimension)[:, :, 0]
    tangents = tangents[:, : y.numel()].contiguous()
    vmapped = torch.func.vmap(lambda tangent: torch.autograd.grad(y, x, tangent, retain_graph=True)[0], in_dims=1)
    expected = [torch.autograd.grad(y, x, row, retain_graph=True)[0] for row in tangents]
    assert_close([vmapped(tangents.t())], [torch.stack(expected)])


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_vectorized_jacobians(halves, strategy: str) -> None:
    def function(x):
        return x.sin().cumsum(0)

    (x,) = (t.detach() for t in doubles((3,)))
    jacobian = torch.autograd.functional.jacobian
    actual = jacobian(aotgrad.aot_function(function, halves), x, vectorize=True, strategy=strategy)
    torch.testing.assert_close(actual, jacobian(function, x))


def test_the_graph_is_freed_as_in_eager(halves) -> None:
    (x,) = doubles((3,))
    y = aotgrad.aot_function(lambda x: x.exp(), halves)(x)
    torch.autograd.grad(y, x, basis(y), is_grads_batched=True)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y, x, basis(y), is_grads_batched=True)


def test_symbolic_sizes(halves) -> None:
    function = aotgrad.aot_function(lambda x: x.sin() * x.size(0), halves, dynamic=True)
    for size in (3, 5):
        (x,) = doubles((size,))
        y = function(x)
        (rows,) = torch.autograd.grad(y, x, basis(y), is_grads_batched=True)
        torch.testing.assert_close(rows, (x.cos() * size).diag())
