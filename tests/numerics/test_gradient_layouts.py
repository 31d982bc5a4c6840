"""Tangents and gradients of any dtype, memory format, layout, size and device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import aotgrad

from .against_eager import ALL, compiled

COMPLEX = torch.complex64


def leaf(*shape, dtype=torch.float32, format=torch.contiguous_format):
    return torch.randn(shape, dtype=dtype).to(memory_format=format).requires_grad_()


def plain(y):
    return torch.randn_like(y)


def expanded(y):
    return torch.randn((), dtype=y.dtype).expand(y.shape)


def transposed(y):
    return torch.randn(y.shape[::-1], dtype=y.dtype).permute(*reversed(range(y.dim())))


def channels_last(y):
    return torch.randn(y.shape, dtype=y.dtype).to(memory_format=torch.channels_last)


def conjugated(y):
    return torch.randn_like(y).conj()


def negative(y):
    return torch.randn(y.shape, dtype=COMPLEX).conj().imag


def convolution(x, w):
    return F.conv2d(x, w).relu()


def product(x, w):
    return (x @ w).sin()


INDEX = torch.tensor([0, 2, 2])
CASES = {
    # tangents
    "channels_last_tangent": (convolution, lambda: (leaf(2, 3, 5, 5), leaf(4, 3, 3, 3)), channels_last),
    "expanded_tangent": (product, lambda: (leaf(3, 4), leaf(4, 2)), expanded),
    "expanded_tangent_of_a_view": (lambda x: x.reshape(-1) * 2, lambda: (leaf(3, 4),), expanded),
    "transposed_tangent": (lambda x, w: (x @ w).view(-1, 2).sin(), lambda: (leaf(3, 4), leaf(4, 2)), transposed),
    "conjugated_tangent": (lambda x, y: (x * y.conj()).exp(), lambda: (leaf(3, dtype=COMPLEX), leaf(3)), conjugated),
    "negative_tangent": (lambda x: x.sin(), lambda: (leaf(3),), negative),
    # memory formats of inputs
    "channels_last_input": (
        convolution,
        lambda: (leaf(2, 3, 5, 5, format=torch.channels_last), leaf(4, 3, 3, 3)),
        plain,
    ),
    "channels_last_3d_input": (
        lambda x: (x * 2).sum((2, 3, 4)),
        lambda: (leaf(2, 3, 4, 4, 2, format=torch.channels_last_3d),),
        plain,
    ),
    # sparse gradients
    "sparse_embedding": (lambda w: F.embedding(INDEX, w, sparse=True) * 2, lambda: (leaf(4, 3),), plain),
    "sparse_embedding_bag": (
        lambda w: F.embedding_bag(INDEX, w, torch.tensor([0, 2]), sparse=True, mode="sum"),
        lambda: (leaf(4, 3),),
        plain,
    ),
    "sparse_and_dense": (lambda w: (F.embedding(INDEX, w, sparse=True), w * 3), lambda: (leaf(4, 3),), plain),
    "two_sparse": (
        lambda w: F.embedding(INDEX, w, sparse=True) + F.embedding(INDEX + 1, w, sparse=True),
        lambda: (leaf(4, 3),),
        plain,
    ),
    "sparse_input": (torch.sparse.mm, lambda: (torch.eye(3).to_sparse(), leaf(3, 2)), plain),
    "sparse_input_with_a_gradient": (
        torch.sparse.mm,
        lambda: (torch.eye(3).to_sparse().requires_grad_(), leaf(3, 2)),
        plain,
    ),
    # dtypes
    "complex_to_real": (lambda x: x.abs(), lambda: (leaf(3, dtype=COMPLEX),), plain),
    "complex_parts": (lambda x: (x.imag * 2, x.real), lambda: (leaf(3, dtype=COMPLEX),), plain),
    "real_to_complex": (lambda x: torch.complex(x, x * 2), lambda: (leaf(3),), conjugated),
    "complex_times_real": (lambda x, y: x @ y, lambda: (leaf(3, 3, dtype=COMPLEX), leaf(3, 3, dtype=COMPLEX)), conjugated),
    "half": (lambda x: x.softmax(-1), lambda: (leaf(3, 4, dtype=torch.float16),), plain),
    "two_dtypes": (lambda x, w: x.double() @ w, lambda: (leaf(3, 4), leaf(4, 2, dtype=torch.float64)), expanded),
    # views
    "view_of_an_input": (lambda x: x.t()[1:].sin(), lambda: (leaf(3, 4),), plain),
    "view_returned": (lambda x: (x * 2).t(), lambda: (leaf(3, 4),), transposed),
    "as_strided": (lambda x: x.as_strided((2, 2), (2, 1), 1) * 2, lambda: (leaf(8),), plain),
    "overlapping_windows": (lambda x: x.unfold(0, 3, 1) * 2, lambda: (leaf(8),), expanded),
    # sizes
    "no_rows": (product, lambda: (leaf(0, 3), leaf(3, 2)), plain),
    "no_columns": (product, lambda: (leaf(2, 0), leaf(0, 2)), plain),
    "empty_reductions": (lambda x: (x.sum(), x * 2, x.sum(0)), lambda: (leaf(0, 3),), plain),
    "scalars": (lambda x: x * x, lambda: (leaf(),), plain),
}


def gradients(function, make_inputs, tangent):
    torch.manual_seed(0)
    inputs = make_inputs()
    results = function(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    wanted = [value for value in inputs if value.requires_grad]
    return torch.autograd.grad(results, wanted, [tangent(result) for result in results], allow_unused=True)


def assert_same(actual, expected) -> None:
    assert (actual is None) == (expected is None)
    if actual is None:
        return
    assert (actual.layout, actual.dtype, actual.shape) == (expected.layout, expected.dtype, expected.shape)
    if actual.layout is torch.sparse_coo:
        assert actual.is_coalesced() == expected.is_coalesced()
        assert torch.equal(actual.to_dense(), expected.to_dense())
        return
    assert actual.numel() <= 1 or actual.stride() == expected.stride()
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_eager(name: str, backend: str) -> None:
    if backend in ("dynamo", "inductor") and name.startswith("sparse_input"):
        pytest.skip("Dynamo takes no sparse tensors in one graph")
    function, make_inputs, tangent = CASES[name]
    expected = gradients(function, make_inputs, tangent)
    under_test = compiled(function, backend)
    for _ in range(2):
        for actual, wanted in zip(gradients(under_test, make_inputs, tangent), expected, strict=True):
            assert_same(actual, wanted)


@pytest.mark.parametrize("devices", [("cpu", "meta"), ("meta", "cpu"), ("cpu", "cuda"), ("cuda", "cpu")])
@pytest.mark.parametrize("separately", [False, True])
def test_outputs_on_several_devices(devices: tuple[str, str], separately: bool) -> None:
    if "cuda" in devices and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")

    def function(x, y):
        return x.sin(), y.cos()

    def run(function):
        torch.manual_seed(0)
        x, y = (torch.ones(3, device=device, requires_grad=True) for device in devices)
        results = function(x, y)
        if separately:
            for result in results:
                result.sum().backward(retain_graph=True)
        else:
            torch.autograd.backward(results, [torch.ones_like(result) for result in results])
        return x.grad, y.grad

    for actual, expected in zip(run(aotgrad.aot_function(function, aotgrad.nop)), run(function), strict=True):
        assert actual.device == expected.device
        assert actual.is_meta or torch.equal(actual, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_region_that_moves_its_input_to_another_device() -> None:
    def run(function):
        x = torch.ones(3, requires_grad=True)
        a, b = function(x)
        (a.sum() + b.cpu().sum()).backward()
        return x.grad

    def function(x):
        return x.sin(), x.cuda() * 2

    assert torch.equal(run(aotgrad.aot_function(function, aotgrad.nop)), run(function))
