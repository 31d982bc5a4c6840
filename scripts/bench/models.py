"""The models that the benchmarks train: a module that returns its loss, and its inputs.

    for workload in workloads():
        workload.fresh_model()(*workload.inputs).backward()

They are small enough that a step takes milliseconds on one core.
"""

import copy
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from gpt import GPT, GPTConfig


@dataclass(frozen=True)
class Workload:
    name: str
    model: nn.Module
    inputs: tuple[Tensor, ...]

    def fresh_model(self) -> nn.Module:
        """A copy with the same weights and no history."""
        return copy.deepcopy(self.model)


class Classifier(nn.Module):
    """A model and its cross-entropy loss."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.model(inputs), targets)


class Bert(nn.Module):
    """Embeddings and an `nn.TransformerEncoder` with dropout; the prediction is read off the first token."""

    def __init__(self, classes: int, vocab_size: int = 512, length: int = 64, width: int = 128, layers: int = 4):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, dim_feedforward=4 * width, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        encoded = self.encoder(self.tokens(tokens) + self.positions)
        return self.head(encoded[:, 0])


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm beside a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(channels_in, channels, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        ResidualBlock(16, 16, stride=1),
        ResidualBlock(16, 32, stride=2),
        ResidualBlock(32, 64, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def mlp(classes: int, width: int = 256, layers: int = 4) -> nn.Module:
    hidden = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*hidden, nn.Linear(width, classes))


def workloads() -> list[Workload]:
    """The four models, with random weights and inputs that are the same in every run."""
    torch.manual_seed(0)
    classes, batch = 10, 8
    labels = torch.randint(classes, (batch,))
    config = GPTConfig(layers=4, tie_embedding=False)  # The peer's aot_module raises on tied parameters.
    tokens = torch.randint(config.vocab_size, (batch, config.context + 1))
    return [
        Workload("MLP", Classifier(mlp(classes)), (torch.randn(batch, 256), labels)),
        Workload("GPT", GPT(config), (tokens[:, :-1], tokens[:, 1:])),
        Workload("BERT-like", Classifier(Bert(classes)), (torch.randint(512, (batch, 64)), labels)),
        Workload("ResNet-like", Classifier(resnet(classes)), (torch.randn(batch, 3, 32, 32), labels)),
    ]
