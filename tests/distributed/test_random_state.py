"""Random numbers of DTensors, and losses over sharded classes (`loss_parallel`)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import aotgrad
from tests.distributed.programs import WIDTH, assert_same, compiled, gradients, tokens

pytestmark = pytest.mark.filterwarnings("ignore:DTensor random operators may not have complete support")


class Dropped(nn.Module):
    """Layers of which one is split, with dropout of sharded and of replicated activations."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.inner, self.outer = nn.Dropout(0.5), nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.down(self.inner(self.up(x).relu())))


PLANS = {
    "local results": {"up": ColwiseParallel(), "down": RowwiseParallel()},
    "sharded activations": {
        "up": ColwiseParallel(use_local_output=False),
        "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        "outer": SequenceParallel(sequence_dim=0, use_local_output=True),
    },
}


def parallel(plan: str) -> nn.Module:
    torch.manual_seed(0)
    return parallelize_module(Dropped(), init_device_mesh("cpu", (dist.get_world_size(),)), PLANS[plan])


def steps(model: nn.Module) -> list[Any]:
    torch.manual_seed(3 + dist.get_rank())
    found = []
    for _ in range(2):
        y = model(torch.ones(4, WIDTH))
        y.square().sum().backward()
        found.append([y.detach(), gradients(model)])
        model.zero_grad()
    return [found, torch.rand(1)]


def dropout(plan: str, way: str) -> None:
    ours = parallel(plan)
    ours = compiled(ours, way, fullgraph=True) if way.startswith("aotgrad") else aotgrad.aot_module(ours, way)
    assert_same(steps(ours), steps(parallel(plan)), way)


@pytest.mark.parametrize("way", ["aotgrad_eager", "eager"])
@pytest.mark.parametrize("plan", PLANS)
def test_dropout_draws_what_eager_draws(two_ranks, plan: str, way: str) -> None:
    """Each rank draws from its own generator."""
    two_ranks.run(dropout, plan, way)


def noisy(x: DTensor) -> Tensor:
    return (F.dropout(x, 0.5) + torch.rand_like(x) * x.sin()).to_local()


def of_one_rank(way: str) -> None:
    """Rank 0 alone traces, compiles and runs what draws numbers: nothing waits for the other one."""
    mesh = init_device_mesh("cpu", (2,))
    if dist.get_rank() == 0:
        found = []
        function = torch.compile(noisy, backend=way, options={"min_graph_ops": 0}) if "aotgrad" in way else None
        for each in (function or aotgrad.aot_function(noisy, way), noisy):
            torch.manual_seed(0)
            x = DTensor.from_local(torch.ones(3, 4), mesh, [Shard(0)], run_check=False).requires_grad_()
            y = each(x)
            y.sum().backward()
            found.append([y.detach(), x.grad, torch.rand(1)])
        assert_same(*found, way)
    dist.barrier()


@pytest.mark.parametrize("way", ["aotgrad_eager", "eager"])
def test_one_rank_compiles_alone(two_ranks, way: str) -> None:
    two_ranks.run(of_one_rank, way, seconds=60)


# --- Losses over sharded classes -------------------------------------------------------------------------------------


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, WIDTH), nn.Linear(WIDTH, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.embedding(tokens))
        return F.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())


def classifier(mesh: DeviceMesh) -> nn.Module:
    torch.manual_seed(0)
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    return parallelize_module(Classifier(), mesh, plan)


def losses(model: nn.Module) -> list[Any]:
    found = []
    for step in range(2):
        with loss_parallel():
            loss = model(tokens(step))
            loss.backward()
        found.append([loss.detach(), gradients(model)])
        model.zero_grad()
    return found


def sharded_classes(way: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    ours = classifier(mesh)
    ours = compiled(ours, way) if way.startswith("aotgrad") else aotgrad.aot_module(ours, way)
    assert_same(losses(ours), losses(classifier(mesh)), way)


@pytest.mark.parametrize("way", ["aotgrad_eager", "eager", "aotgrad"])
def test_losses_over_sharded_classes(two_ranks, way: str) -> None:
    two_ranks.run(sharded_classes, way)
