"""Common parts of programs: a loop over steps, and a small network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from scripts.workflows.run import Run

STEPS = 8


def train(
    run: Run,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[int], Tensor],
    update: Callable[[], object] | None = None,
    steps: int = STEPS,
) -> None:
    """The plain loop: `loss_of` gets the number of a step; `update` replaces or extends the optimizer's step."""
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(step)
        loss.backward()
        run.step(loss, module)
        (update or optimizer.step)()


def batches(*shape: int, steps: int = STEPS) -> list[Tensor]:
    """A batch for each step."""
    return [torch.randn(*shape) for _ in range(steps)]


class Chain(nn.Sequential):
    """One layer after the other. `nn.Sequential.compile` compiles nothing: Dynamo skips calls of torch's own files."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> Chain:
    def layers() -> Iterator[nn.Module]:
        for k, (size, following) in enumerate(pairwise(sizes)):
            if k:
                yield activation()
            yield nn.Linear(size, following)

    return Chain(*layers())


class Batches(torch.utils.data.Dataset):
    """A data set of dictionaries, each with one item of every tensor."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: tensor[index] for name, tensor in self.tensors.items()}
