"""Ops whose shape functions lay out a result otherwise than their kernels, where a view of the result copies in eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from .against_eager import ALL, compiled

W = torch.linspace(-1, 1, 36).reshape(6, 6)
LIKE = torch.linspace(0.1, 2, 24).reshape(6, 4)


def rows(x):
    """Values whose gradient is reshaped by the backward of the product."""
    return x @ W


PROGRAMS = {
    "layer_norm": lambda x: F.layer_norm(rows(x).transpose(1, 2), (4,)),
    "group_norm": lambda x: F.group_norm(rows(x).transpose(1, 2), 2),
    "batch_norm": lambda x: F.batch_norm(rows(x).transpose(1, 2), None, None, training=True),
    "hardtanh": lambda x: F.hardtanh(rows(x).view(2, 4, 6)).transpose(1, 2) * 2,
    "softplus": lambda x: F.softplus(rows(x)).transpose(1, 2) * 2,
    "hardswish": lambda x: F.hardswish(rows(x)).transpose(1, 2) * 2,
    "logit": lambda x: rows(x).sigmoid().logit(1e-6).transpose(1, 2) * 2,
    "log_softmax": lambda x: rows(x).transpose(1, 2).log_softmax(-1),
    "logsigmoid": lambda x: F.logsigmoid(rows(x).transpose(1, 2)).reshape(-1),
    "mse_loss": lambda x: F.mse_loss(rows(x).transpose(1, 2), LIKE.expand(2, 6, 4), reduction="none"),
    "huber_loss": lambda x: F.huber_loss(rows(x).transpose(1, 2), LIKE.expand(2, 6, 4)),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(rows(x).transpose(1, 2), LIKE.expand(2, 6, 4)),
    "copysign": lambda x: torch.copysign(x.transpose(1, 2), LIKE).transpose(1, 2).reshape(-1) * 2,
    "pow": lambda x: torch.pow(2.0, x.transpose(1, 2)).reshape(-1),
    "xlogy": lambda x: torch.xlogy(x.transpose(1, 2).exp(), LIKE).reshape(-1),
}


LAID_OUT_BY_INDUCTOR = {("batch_norm", "aot_inductor"), ("batch_norm", "inductor")}
"""Programs whose result has the layout of Inductor's decomposition."""


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ALL)
def test_as_eager(backend, name, dynamic) -> None:
    def run(function):
        x = torch.linspace(-2, 2, 48).sin().reshape(2, 4, 6).requires_grad_()
        y = function(x)
        y.backward(torch.linspace(-1, 1, y.numel()).cos().reshape(y.shape))
        return y, x.grad

    actual, expected = run(compiled(PROGRAMS[name], backend, dynamic=dynamic)), run(PROGRAMS[name])
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride() or (name, backend) in LAID_OUT_BY_INDUCTOR


@pytest.mark.parametrize("columns", [8, 12])
@pytest.mark.parametrize("backend", ["nop", "aot_inductor"])
def test_grouped_products_of_float32(backend, columns) -> None:
    """Torch's shape function takes bfloat16 alone. With 12 columns, rows of bfloat16 would have gaps."""
    offsets = torch.tensor([2, 2, 6], dtype=torch.int32)

    def run(function):
        x, w = (torch.linspace(-1, 1, n).reshape(shape).requires_grad_() for n, shape in WEIGHTS[columns])
        y = function(x, w)
        y.backward(torch.linspace(-1, 1, y.numel()).cos().reshape(y.shape))
        return y, x.grad, w.grad

    def function(x, w):
        return F.grouped_mm(x * 2, w.transpose(-2, -1), offs=offsets).sin()

    under_test = compiled(function, backend)
    for one, other in zip(run(under_test), run(function), strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    assert len(under_test.plans()) == 1


WEIGHTS = {columns: [(96, (6, 16)), (48 * columns, (3, columns, 16))] for columns in (8, 12)}
