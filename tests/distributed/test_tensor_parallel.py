"""Tensor and sequence parallelism (`parallelize_module`), also on a mesh with data parallelism."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tests.distributed.programs import WIDTH, assert_same, compiled, tokens, train

HEAD = 4
VOCABULARY = 32


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.project = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = (layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return self.project(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.mlp_norm, self.mlp = nn.LayerNorm(WIDTH), Gated()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


class WithLoss(nn.Module):
    """The loss is a part of what is compiled."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return F.cross_entropy(self.model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())


TENSOR = {
    **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
    "attention.project": RowwiseParallel(),
    "mlp.gate": ColwiseParallel(),
    "mlp.up": ColwiseParallel(),
    "mlp.down": RowwiseParallel(),
}
GATHERED = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
SEQUENCE = {
    **TENSOR,
    "attention_norm": SequenceParallel(),
    "attention": GATHERED,
    "attention.project": RowwiseParallel(output_layouts=Shard(1)),
    "mlp_norm": SequenceParallel(),
    "mlp": GATHERED,
    "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
}
ENDS = {
    "tensor": {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    },
    "sequence": {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
}


def parallel(mesh: DeviceMesh, kind: str, blocks: int = 1) -> WithLoss:
    torch.manual_seed(0)
    model = Transformer(blocks)
    parallelize_module(model, mesh, ENDS[kind])
    for block in model.blocks:
        parallelize_module(block, mesh, TENSOR if kind == "tensor" else SEQUENCE)
    return WithLoss(model)


def batches(rank: int = 0) -> list[Tensor]:
    return [tokens(10 * step + rank, length=8) for step in range(3)]


def steps(kind: str, backend: str, part: str) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    ours = parallel(mesh, kind)
    for module in ours.model.blocks if part == "blocks" else [ours]:
        compiled(module, backend, fullgraph=True)
    assert_same(train(ours, batches()), train(parallel(mesh, kind), batches()), backend)


@pytest.mark.parametrize("part", ["blocks", "whole"])
@pytest.mark.parametrize("kind", ENDS)
def test_steps_are_those_of_eager(two_ranks, kind: str, part: str) -> None:
    two_ranks.run(steps, kind, "aotgrad_eager", part)


@pytest.mark.parametrize("kind", ENDS)
def test_steps_through_inductor(two_ranks, kind: str) -> None:
    two_ranks.run(steps, kind, "aotgrad", "whole")


def lengths(kind: str, backend: str, part: str) -> None:
    """Each length after the first is symbolic; the hooks of a part that is compiled alone run at graph breaks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    ours, batches = parallel(mesh, kind), [tokens(step, length) for step, length in enumerate((8, 12, 16, 12))]
    for module in ours.model.blocks if part == "blocks" else [ours]:
        compiled(module, backend)
    assert_same(train(ours, batches), train(parallel(mesh, kind), batches), backend)


@pytest.mark.parametrize("part", ["blocks", "whole"])
def test_sequences_of_several_lengths(two_ranks, part: str) -> None:
    two_ranks.run(lengths, "sequence", "aotgrad_eager", part)


def sequential(backend: str) -> None:
    """Dynamo breaks the graph at the hooks, and compiles them for symbolic sizes the second time."""

    def run(backend: str | None) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        model = model if backend is None else compiled(model, backend)
        for batch in (4, 6, 4):
            model(torch.ones(batch, 8)).square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    assert_same(run(backend), run(None), backend, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
def test_layers_with_hooks_of_symbolic_sizes(two_ranks, backend: str) -> None:
    two_ranks.run(sequential, backend)


# --- With data parallelism -------------------------------------------------------------------------------------------


def sharded(mesh: DeviceMesh, kind: str, backend: str | None, **settings: Any) -> nn.Module:
    model = parallel(mesh["tensor"], kind, blocks=2)
    for block in model.model.blocks:
        fully_shard(block if backend is None else compiled(block, backend), mesh=mesh["data"], **settings)
    return fully_shard(model, mesh=mesh["data"], **settings)


def steps_with_data(kind: str, backend: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    rank = mesh.get_local_rank("data")
    expected = train(sharded(mesh, kind, None), batches(rank))
    assert_same(train(sharded(mesh, kind, backend), batches(rank)), expected, backend)


@pytest.mark.parametrize("kind", ENDS)
def test_tensor_and_data_parallel(four_ranks, kind: str) -> None:
    four_ranks.run(steps_with_data, kind, "aotgrad_eager")


def test_tensor_and_data_parallel_through_inductor(four_ranks) -> None:
    four_ranks.run(steps_with_data, "tensor", "aotgrad")
