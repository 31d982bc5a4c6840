"""Steps of training on a GPU that have no counterpart on a CPU: two devices, transfers, autocast, kernels of their own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import aotgrad
from tests.numerics.against_eager import assert_like_eager, leaf, plain
from tests.numerics.conftest import TORCH_WARNS

pytestmark = [pytest.mark.filterwarnings(warning) for warning in TORCH_WARNS]


def autocast(x, w):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return (x @ w).relu().float()


def write_buffer(x, buffer):
    buffer.add_(x.detach())
    return x * buffer


def to_the_cpu_and_back(x):
    return x.sin().cpu().cos().cuda()


def scalar_on_the_cpu(x, s):
    return x * s


def in_a_checkpoint(x, w):
    return checkpoint(lambda x: F.dropout(x @ w, 0.5).cos(), x, use_reentrant=False)


def cpu_scalar() -> Tensor:
    return torch.tensor(2.0, device="cpu", requires_grad=True)


STEPS = {
    "matrix product": (lambda x, w: (x @ w).relu().sin(), lambda: (leaf(8, 16), leaf(16, 16))),
    "dropout": (lambda x, w: F.dropout(x @ w, 0.5).relu(), lambda: (leaf(8, 16), leaf(16, 16))),
    "convolution": (lambda x, w: F.conv2d(x, w).relu(), lambda: (leaf(2, 8, 9, 9), leaf(8, 8, 3, 3))),
    "transposed": (lambda x, w: F.conv_transpose2d(x, w).relu(), lambda: (leaf(2, 4, 5, 5), leaf(4, 3, 3, 3))),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=4).relu(), lambda: (leaf(2, 4, 5, 5), leaf(4, 1, 3, 3))),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: (leaf(2, 4, 16, 8), leaf(2, 4, 16, 8), leaf(2, 4, 16, 8)),
    ),
    "batch norm": (
        lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b, training=True),
        lambda: (leaf(4, 8, 5, 5), leaf(8), leaf(8), plain(8), plain(8).abs()),
    ),
    "to the CPU and back": (to_the_cpu_and_back, lambda: (leaf(4),)),
    "to another device and back": (lambda x: (x.to("cuda:1").sin() * 2).to("cuda:0"), lambda: (leaf(4),)),
    "results on two devices": (lambda x: (x.sin(), x.to("cuda:1").cos()), lambda: (leaf(4),)),
    "a scalar on the CPU": (scalar_on_the_cpu, lambda: (leaf(4), cpu_scalar())),
    "an index on the CPU": (lambda x: x[torch.tensor([0, 1], device="cpu")] * 2, lambda: (leaf(4),)),
    "autocast": (autocast, lambda: (leaf(8, 16), leaf(16, 16))),
    "a mutated buffer": (write_buffer, lambda: (leaf(4), plain(4))),
    "a checkpoint": (in_a_checkpoint, lambda: (leaf(8, 16), leaf(16, 16))),
}


@pytest.mark.parametrize("backend", ["nop", "dynamo"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_eagers(name, backend):
    assert_like_eager(*STEPS[name], backend)


@pytest.mark.parametrize("options", [{"memory_budget": 0.1}, {"grad_segments": 2}], ids=str)
def test_options(options):
    function = lambda x, w: (F.dropout((x @ w).sin(), 0.5).cos().sin().sum(), (x * 2).sum())  # noqa: E731
    assert_like_eager(function, lambda: (leaf(64, 64), leaf(64, 64)), "nop", options=options)


def test_a_second_gradient_after_dropout():
    def second(function):
        torch.manual_seed(3)
        x = torch.randn(4, 4, requires_grad=True)
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    function = lambda x: (F.dropout(x, 0.5) * x).sin()  # noqa: E731
    torch.testing.assert_close(second(aotgrad.aot_function(function, aotgrad.nop)), second(function))


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_custom_function_knows_the_autocast_of_its_forward(device_type):
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type)
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx, gradient):
            x, w = ctx.saved_tensors
            return (gradient @ w.t()).float(), (x.t() @ gradient).float()

    def function(x, w):
        with torch.autocast(device_type, dtype=torch.bfloat16):
            return Product.apply(x, w).float().sin()

    def step(function):
        torch.manual_seed(0)
        x, w = (torch.randn(8, 8, device=device_type, requires_grad=True) for _ in range(2))
        function(x, w).sum().backward()
        return x.grad, w.grad

    found, expected = step(aotgrad.aot_function(function, aotgrad.nop)), step(function)
    for gradient, wanted in zip(found, expected, strict=True):
        assert torch.equal(gradient, wanted) and torch.equal(
            wanted, wanted.bfloat16().float()
        )  # the products are in bfloat16


def test_a_backward_under_autocast():
    """Eager runs each op of the backward in the dtype that the forward chose."""

    def step(function):
        torch.manual_seed(0)
        x, w = leaf(8, 8), leaf(8, 8)
        y = function(x, w).sum()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y.backward()
        return x.grad

    function = lambda x, w: (x @ w).sin()  # noqa: E731
    assert torch.equal(step(aotgrad.aot_function(function, aotgrad.nop)), step(function))
