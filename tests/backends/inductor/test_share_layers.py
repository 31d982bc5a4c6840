"""`share_layers`: equal layers are compiled once, and compute what eager does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.backends import layers
from aotgrad.telemetry.counters import counters
from tests.in_pieces import IN_PIECES
from tests.training_step.comparing import Training, assert_trains_like_eager, batches, plain_step

LAYERS = 6


@pytest.fixture(autouse=True)
def pieces_of_small_layers(monkeypatch):
    """The layers of these tests are small, and few."""
    monkeypatch.setattr(layers, "ENOUGH_WORK", 20)


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.inside, self.outside = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.outside(nn.functional.gelu(self.inside(self.norm(x)))))


def deep(width: int = 4, dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(*(Block(width, dropout) for _ in range(LAYERS)), nn.Linear(width, 2))


def with_batch_norm() -> nn.Module:
    blocks = (nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU()) for _ in range(LAYERS))
    return nn.Sequential(*blocks, nn.Linear(4, 2))


def shared_pieces(run: Callable[[], object]) -> int:
    before = counters["shared_pieces"]
    run()
    return counters["shared_pieces"] - before


def by_dynamo(model: nn.Module, **options) -> Callable:
    torch._dynamo.reset()
    return torch.compile(model, backend="aotgrad", options={"cache": False, **options})


def by_aot_module(model: nn.Module, **options) -> Callable:
    return aotgrad.aot_module(model, "inductor", options=options)


@pytest.mark.parametrize("compiled_by", [by_dynamo, by_aot_module])
@pytest.mark.parametrize("make", [deep, with_batch_norm])
def test_forward_and_backward(make, compiled_by):
    model, x = make(), torch.randn(6, 4, requires_grad=True)
    compiled = compiled_by(model, share_layers=True)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    expected = model(x)
    expected_gradients = torch.autograd.grad(expected.sum(), [x, *model.parameters()])
    expected_buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.load_state_dict(buffers, strict=False)

    def run() -> None:
        result = compiled(x)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(torch.autograd.grad(result.sum(), [x, *model.parameters()]), expected_gradients)

    shared = shared_pieces(run)
    assert shared > 0 or make is deep  # the forward saves other values in each layer, so that no two are equal
    torch.testing.assert_close(dict(model.named_buffers()), expected_buffers)
    assert shared_pieces(run) == 0


@torch.no_grad()
def test_inference_compiles_two_layers_of_six():
    model, x = deep(), torch.randn(6, 4)
    compiled = by_dynamo(model, share_layers=True)
    assert shared_pieces(lambda: torch.testing.assert_close(compiled(x), model(x))) == LAYERS / 2 - 1


def test_layers_are_not_shared_by_default():
    assert shared_pieces(lambda: by_dynamo(deep())(torch.randn(6, 4)).sum().backward()) == 0


def test_symbolic_sizes():
    model = deep()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="aotgrad", dynamic=True, options={"cache": False, "share_layers": True})
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4, requires_grad=True)
        result, expected = compiled(x), model(x)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(torch.autograd.grad(result.sum(), x), torch.autograd.grad(expected.sum(), x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_each_layer_draws_its_own_numbers():
    model, x = deep(width=64, dropout=0.5), torch.randn(64, 64, requires_grad=True)
    compiled = by_dynamo(nn.Sequential(*(layer.dropout for layer in list(model)[:LAYERS])), share_layers=True)
    kept = compiled(torch.ones_like(x))
    assert 0 < (kept != 0).float().mean() < 0.05  # of six independent masks, one in 64 elements remains
    assert not torch.equal(kept, compiled(torch.ones_like(x)))
    result = by_dynamo(model, share_layers=True)(x)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert gradient.isfinite().all()


def training(make: Callable[[], nn.Module], **options) -> Training:
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
    return Training(plain_step(model, optimizer), [model, optimizer])


@pytest.mark.parametrize("keep_gradients", [True, False])
@pytest.mark.parametrize("backend", ["inductor", IN_PIECES], ids=["layers", "pieces"])
@pytest.mark.parametrize("make", [deep, with_batch_norm])
def test_a_whole_step(make, backend, keep_gradients):
    def run() -> None:
        assert_trains_like_eager(lambda: training(make), batches(4), backend, plans=2, keep_gradients=keep_gradients)

    assert shared_pieces(run) > 0


def test_equal_layers_have_equal_updates():
    """An op on the list of all parameters would belong to no layer."""

    def run() -> None:
        assert_trains_like_eager(lambda: training(deep, foreach=True), batches(3), "inductor", plans=2)

    assert shared_pieces(run) >= LAYERS / 2
