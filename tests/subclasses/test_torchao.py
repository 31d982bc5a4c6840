"""The tensors that torchao trains and quantizes with, against eager. `scripts/workflows.txt` has the version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.subclasses.programs import WAYS, compiled

pytest.importorskip("torchao", reason="torchao is in scripts/workflows.txt")

from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.prototype import quantized_training
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)
from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import linear_nf4, to_nf4

pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64, bias=False), nn.GELU(), nn.Linear(64, 32))


def quantized(config: Callable[[], Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = network()
        quantize_(model, config())
        return model

    return make


def in_float8() -> nn.Module:
    return convert_to_float8_training(network(), config=Float8LinearConfig(emulate=True))


class LowRank(nn.Module):
    """A frozen weight in 4 bits, and a correction of low rank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(to_nf4(torch.randn(64, 64), 64, 64), requires_grad=False)
        self.down, self.up = nn.Linear(64, 4), nn.Linear(4, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear_nf4(x, self.weight) + self.up(self.down(x))


TRAINED: dict[str, Callable[[], nn.Module]] = {
    "weights in 8 bits": quantized(quantized_training.int8_weight_only_quantized_training),
    "products in 8 bits": quantized(quantized_training.int8_mixed_precision_training),
    "three values": quantized(quantized_training.bitnet_training),
    "products in float8": in_float8,
    "a weight in 4 bits": LowRank,
}
FROZEN: dict[str, Callable[[], nn.Module]] = {
    "weights in 8 bits": quantized(Int8WeightOnlyConfig),
    "weights and inputs in 8 bits": quantized(Int8DynamicActivationInt8WeightConfig),
    "weights in float8": quantized(Float8WeightOnlyConfig),
}


def plain(value: torch.Tensor) -> torch.Tensor:
    return value.dequantize() if hasattr(value, "__tensor_flatten__") else value


def trained(make: Callable[[], nn.Module], way: str | None) -> list[torch.Tensor]:
    """The results and the gradients of two steps."""
    model = make()
    run = model if way is None else compiled(model, way)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    found = []
    for step in range(2):
        torch.manual_seed(step)
        result = run(torch.randn(16, 64))
        result.square().mean().backward()
        found += [result.detach(), *(plain(p.grad) for p in model.parameters() if p.grad is not None)]
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2], WAYS[3]])
@pytest.mark.parametrize("name", TRAINED)
def test_training(name, way) -> None:
    for found, expected in zip(trained(TRAINED[name], way), trained(TRAINED[name], None), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FROZEN)
def test_inference(name, way) -> None:
    x = torch.randn(16, 64)
    with torch.no_grad():
        torch.testing.assert_close(compiled(FROZEN[name](), way)(x), FROZEN[name]()(x), rtol=1e-4, atol=1e-4)
