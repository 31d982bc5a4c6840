"""What ranks do in the tests: models, their steps, and the comparison with eager, which each rank makes for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

WIDTH = 16


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """Blocks between an embedding and a head; the loss is that of the next token."""

    def __init__(self, blocks: int = 2, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.roll(-1, 1).flatten())


def tokens(seed: int, length: int = 7) -> Tensor:
    """A batch of this rank, or of all if the seed is the same on all."""
    return torch.randint(32, (3, length), generator=torch.Generator().manual_seed(seed))


def compiled(model: nn.Module, backend: str, fullgraph: bool = False) -> nn.Module:
    """The model compiled in place: its parameters and hooks stay what they are."""
    model.compile(backend=backend, fullgraph=fullgraph, options={"min_graph_ops": 0})
    return model


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: None if gradient is None else gradient.clone() for name, gradient in found.items()}


def train(model: nn.Module, batches: Sequence[Tensor], rate: float = 0.1) -> list[Any]:
    """The loss and the gradients of each step."""
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    steps = []
    for batch in batches:
        loss = model(batch)
        loss.backward()
        steps.append((loss.detach(), gradients(model)))
        optimizer.step()
        optimizer.zero_grad()
    return steps


def assert_same(found: Any, expected: Any, backend: str, **tolerance: float) -> None:
    """Compare trees of tensors: values, and the placements of DTensors. Inductor's may differ by `tolerance`."""
    found_leaves, structure = pytree.tree_flatten(found)
    expected_leaves, expected_structure = pytree.tree_flatten(expected)
    assert structure == expected_structure and len(found_leaves) > 0
    for one, other in zip(found_leaves, expected_leaves, strict=True):
        assert type(one) is type(other), (type(one), type(other))
        if isinstance(one, DTensor):
            assert one._spec == other._spec
            one, other = one.to_local(), other.to_local()
        if isinstance(one, Tensor) and "eager" in backend:
            assert one.dtype == other.dtype and torch.equal(one, other), (one - other).abs().max()
        elif isinstance(one, Tensor):
            torch.testing.assert_close(one, other, **tolerance)
        else:
            assert one == other
