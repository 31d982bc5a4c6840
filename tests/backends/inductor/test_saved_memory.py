"""What is saved through Inductor takes at most the memory of what eager saves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from examples.saved_bytes import saved_bytes


class Classifier(nn.Module):
    """A network and a loss whose formula has more steps in Inductor than in eager."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.network(x), labels)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))


def convolutions() -> nn.Module:
    """Inductor lays out the weights anew."""
    blocks = (nn.Sequential(nn.Conv2d(n, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for n in (3, 8))
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


def encoder() -> nn.Module:
    """Dropouts, of which eager saves masks and Inductor seeds."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(8 * 16, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (perceptron, (8, 16)),
    "convolutions": (convolutions, (8, 3, 16, 16)),
    "encoder": (encoder, (8, 8, 16)),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_no_more_is_saved_than_in_eager(name: str) -> None:
    make, size = NETWORKS[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Classifier(make())
    call = partial(model, torch.randn(size), torch.randint(10, size[:1]))
    compiled = torch.compile(call, backend="aotgrad", options={"cache": False})
    eager = saved_bytes(call, model.parameters())
    compiled().backward()
    assert 0 < saved_bytes(compiled, model.parameters()) <= eager
