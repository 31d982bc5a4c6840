"""Parallelism written with collectives: experts on several ranks (all_to_all), and attention over a sequence in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import Tensor, nn

import aotgrad
from aotgrad.errors import CaptureError
from tests.distributed.programs import WIDTH, assert_same, compiled, gradients

CAPACITY = 3
"""How many tokens each rank sends to each expert."""


def exchanged(x: Tensor, received: list[int] | None = None, sent: list[int] | None = None) -> Tensor:
    return collectives.all_to_all_single_autograd(x, received, sent, dist.group.WORLD)


class Experts(nn.Module):
    """Each rank holds one expert and part of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(WIDTH, dist.get_world_size())
        torch.manual_seed(1 + dist.get_rank())
        self.expert = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


class WithCapacity(Experts):
    """Each expert gets the tokens with the largest weights for it, the same number from each rank."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).t().topk(CAPACITY, dim=1)
        tokens = exchanged(x[chosen.flatten()])
        found = exchanged(self.expert(tokens)) * weights.flatten().unsqueeze(1)
        return x.index_add(0, chosen.flatten(), found)


class Dropless(Experts):
    """Each token goes to the expert with the largest weight; the ranks tell each other how many they send."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = F.one_hot(chosen, dist.get_world_size()).sum(0)
        sent, received = counts.tolist(), collectives.all_to_all_single(counts, None, None, dist.group.WORLD).tolist()
        tokens = exchanged(x[order], received, sent)
        found = exchanged(self.expert(tokens), sent, received) * weights[order].unsqueeze(1)
        return x.index_add(0, order, found)


class PartsOfSequence(nn.Module):
    """Attention whose queries are a part of the sequence; the keys and values of all ranks are gathered."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inward, self.outward = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (each.unflatten(-1, (2, -1)).transpose(0, 1) for each in self.inward(x).chunk(3, -1))
        key, value = (collectives.all_gather_tensor_autograd(each, 1, dist.group.WORLD) for each in (key, value))
        last = len(x) * dist.get_rank() + torch.arange(len(x))
        mask = torch.arange(key.size(1)) <= last.unsqueeze(1)
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return x + self.outward(found.transpose(0, 1).flatten(1))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "experts with a capacity": WithCapacity,
    "experts without": Dropless,
    "parts of a sequence": PartsOfSequence,
}


def steps(model: nn.Module) -> list[Any]:
    found = []
    for step in range(2):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        x = torch.randn(6, WIDTH, generator=generator, requires_grad=True)
        y = model(x)
        y.square().sum().backward()
        found.append([y.detach(), x.grad, gradients(model)])
        model.zero_grad()
    return found


def compare(name: str, way: str) -> None:
    make = MODULES[name]
    ours = compiled(make(), way) if way.startswith("aotgrad") else aotgrad.aot_module(make(), way)
    assert_same(steps(ours), steps(make()), way)


@pytest.mark.parametrize("name", MODULES)
def test_steps_are_those_of_eager(two_ranks, name: str) -> None:
    two_ranks.run(compare, name, "aotgrad_eager")


@pytest.mark.parametrize("name", ["experts with a capacity", "parts of a sequence"])
def test_steps_without_dynamo(two_ranks, name: str) -> None:
    two_ranks.run(compare, name, "eager")


def refused() -> None:
    with pytest.raises(CaptureError, match="cannot be computed before the call"):
        aotgrad.aot_module(Dropless(), "eager")(torch.randn(6, WIDTH))


def test_numbers_that_other_ranks_send_are_refused_without_dynamo(two_ranks) -> None:
    two_ranks.run(refused)
