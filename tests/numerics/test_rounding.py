"""Bit-for-bit equality where another kernel of torch, or another order of a sum, would round differently from eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import aotgrad
from tests.device import TYPE


def results(function, x: torch.Tensor) -> list[torch.Tensor]:
    """The result of a function and its gradient."""
    torch.manual_seed(1)
    returned = function(x)
    returned = returned if isinstance(returned, (list, tuple)) else [returned]
    tangents = [torch.linspace(-1, 2, each.numel()).view(each.shape).to(each.dtype) for each in returned]
    return [*returned, *torch.autograd.grad(returned, x, tangents)]


def assert_bit_equal(function, x: torch.Tensor) -> None:
    found = results(aotgrad.aot_function(function, aotgrad.nop, options={"min_graph_ops": 0}), x)
    assert all(map(torch.equal, found, results(function, x)))


@pytest.mark.parametrize("p", [0.15, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dropout(dtype, p):
    assert_bit_equal(lambda x: F.dropout(x, p), torch.linspace(-3, 3, 500).to(dtype).requires_grad_())


SIZES = {"linear": (7,), "bilinear": (7, 5), "bicubic": (7, 5), "trilinear": (7, 5, 3)}


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", SIZES)
def test_interpolation(mode, dtype, align_corners):
    x = torch.linspace(-3, 3, 2 * 3 * 4 ** len(SIZES[mode])).view(2, 3, *(4,) * len(SIZES[mode])).to(dtype).requires_grad_()
    assert_bit_equal(lambda x: F.interpolate(x, SIZES[mode], mode=mode, align_corners=align_corners), x)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolation_without_aliasing(mode):
    x = torch.linspace(-3, 3, 600).view(2, 3, 10, 10).requires_grad_()
    assert_bit_equal(lambda x: F.interpolate(x, (4, 7), mode=mode, antialias=True), x)


@pytest.mark.parametrize("loss", [F.multi_margin_loss, F.multilabel_margin_loss])
def test_losses_of_margins(loss):
    x = torch.linspace(-3, 3, 40).view(5, 8).sin().requires_grad_()
    target = torch.arange(5) if loss is F.multi_margin_loss else torch.arange(40).view(5, 8) % 7 - 1
    assert_bit_equal(lambda x: loss(x, target), x)


@pytest.mark.parametrize("backend", ["aotgrad", "aotgrad_eager"])
def test_targets_behind_the_end_of_a_row(backend):
    """A row of targets ends at its first -1. Torch's own decomposition, which Inductor uses, reads on."""
    target = torch.tensor([[3, 0, -1, 1], [-1, 0, 1, 2], [3, 3, -1, 0], [1, 2, 3, 0]])
    for reduction in ("none", "mean", "sum"):

        def loss(x, target, reduction=reduction):
            return F.multilabel_margin_loss(x.sin(), target, reduction=reduction)

        for rows in (slice(None), 0):
            torch._dynamo.reset()
            x = torch.linspace(-3, 3, 16).view(4, 4)[rows].clone().requires_grad_()
            found, expected = (call(x, target[rows]) for call in (torch.compile(loss, backend=backend), loss))
            torch.testing.assert_close(found, expected)
            gradients = (torch.autograd.grad(each.sum(), x)[0] for each in (found, expected))
            torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("options", [{}, {"grad_segments": 3}], ids=["whole", "segments"])
def test_terms_of_several_results_are_added_one_after_the_other(options):
    def function(x):
        return torch.gradient(x, dim=(0, 1))

    x = torch.linspace(-3, 3, 30).view(5, 6).cos().bfloat16().requires_grad_()
    (expected,) = results(function, x)[2:]
    assert torch.equal(results(aotgrad.aot_function(function, aotgrad.nop, options=options), x)[2], expected)


def test_a_step_under_autocast():
    def gradients(call):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 8))
        x = torch.randn(6, 8)
        with torch.autocast(TYPE, torch.bfloat16):
            result = call(model)(x)
        result.float().square().mean().backward()
        return [parameter.grad for parameter in model.parameters()]

    assert all(map(torch.equal, gradients(lambda model: aotgrad.aot_module(model, aotgrad.nop)), gradients(lambda m: m)))
