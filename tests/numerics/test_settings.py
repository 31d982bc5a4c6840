"""A gradient of a gradient runs the function with the settings of its call, and the backward with those of the backward."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import aotgrad

from .against_eager import ALL, compiled


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def with_a_constant(x):
    return (x * torch.tensor([1.1, 2.2, 3.3])).exp()


class Constant(torch.autograd.Function):
    """Its backward makes a tensor: of the type that is the default in the backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return (gradient * x.cos() * torch.tensor([1.1, 2.2, 3.3])).to(x.dtype)


def second(function: Callable, x: torch.Tensor, during_call: Any, during_backward: Any) -> torch.Tensor:
    with during_call:
        result = function(x)
    with during_backward:
        (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]


DTYPES = [(torch.float64, torch.float32), (torch.float32, torch.float64)]


@pytest.mark.parametrize("way", ALL)
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_the_default_dtype_is_that_of_the_call(way, dtypes):
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def run(function):
        return second(function, x, *(default_dtype(dtype) for dtype in dtypes))

    torch.testing.assert_close(run(compiled(with_a_constant, way)), run(with_a_constant))


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_the_default_dtype_in_a_custom_backward_is_that_of_the_backward(dtypes):
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def run(function):
        return second(function, x, *(default_dtype(dtype) for dtype in dtypes))

    torch.testing.assert_close(run(aotgrad.aot_function(Constant.apply, aotgrad.nop)), run(Constant.apply))


@pytest.mark.parametrize("way", ALL)
def test_the_default_device_is_that_of_the_call(way):
    x = torch.ones(3, requires_grad=True)

    def run(function):
        return second(function, x, contextlib.nullcontext(), torch.device("meta"))

    torch.testing.assert_close(run(compiled(with_a_constant, way)), run(with_a_constant))


def attention(q):
    return torch.nn.functional.scaled_dot_product_attention(q, q, q)


def test_a_plan_is_not_used_again_when_reductions_of_half_precision_are_allowed():
    torch.manual_seed(0)
    q, allow = torch.randn(2, 4, 64, 32, dtype=torch.bfloat16), torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        fast = aotgrad.aot_function(attention, aotgrad.nop)
        first = fast(q)
        try:
            allow(True)
            assert torch.equal(fast(q), attention(q)) and not torch.equal(fast(q), first)
        finally:
            allow(False)
        assert torch.equal(fast(q), first)


def test_a_plan_is_not_used_again_when_the_order_of_attention_kernels_changes():
    q, kernels = torch.randn(1, 2, 4, 8), torch.nn.attention.SDPBackend
    fast = aotgrad.aot_function(attention, aotgrad.nop)
    for order in ([kernels.FLASH_ATTENTION, kernels.MATH], [kernels.MATH, kernels.FLASH_ATTENTION]):
        with torch.nn.attention.sdpa_kernel(order, set_priority=True):
            assert torch.equal(fast(q), attention(q))
    assert len(fast.plans()) == 2


NEW_NAMES = """
import torch
torch.backends.{place}.fp32_precision = "tf32"
for backend in ("aotgrad_eager", "aotgrad"):
    x = torch.ones(4, 4, requires_grad=True)
    function = lambda x: (x.sin() @ x).cos().sum()
    torch.compile(function, backend=backend)(x).backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(function(x), x)[0])
"""


@pytest.mark.parametrize("place", ["cuda.matmul", "mkldnn.matmul"])
def test_functions_compile_after_a_precision_was_set_by_the_new_names(place):
    """Some of torch's functions for the old names raise from then on, so this is a process of its own."""
    subprocess.run([sys.executable, "-c", NEW_NAMES.format(place=place)], check=True)
