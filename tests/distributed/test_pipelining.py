"""Pipelines of compiled stages (`torch.distributed.pipelining`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

import aotgrad
from tests.distributed.programs import WIDTH, Block, assert_same, compiled, gradients

SCHEDULES: dict[str, tuple[Callable[..., Any], int]] = {
    "gpipe": (ScheduleGPipe, 1),
    "one forward, one backward": (Schedule1F1B, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2),
    "zero bubbles": (ScheduleInterleavedZeroBubble, 2),
}
"""A schedule, and how many stages a rank has."""


def prepared(block: nn.Module, way: str | None) -> nn.Module:
    """The module of a stage: as it is, compiled behind Dynamo, or without."""
    if way is None:
        return block
    return compiled(block, way) if way.startswith("aotgrad") else aotgrad.aot_module(block, way)


def run(name: str, way: str | None) -> list[Any]:
    """The losses on the last rank, and the gradients of this rank's stages after each step."""
    make, count = SCHEDULES[name]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stages = []
    for number in range(rank, count * ranks, ranks):
        torch.manual_seed(number)
        stages.append(PipelineStage(prepared(Block(), way), number, count * ranks, CPU))
    schedule = make(stages[0] if count == 1 else stages, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    return [step(schedule, stages, number) for number in range(2)]


CPU = torch.device("cpu")


def step(schedule: Any, stages: list[PipelineStage], number: int) -> list[Any]:
    torch.manual_seed(number)
    x, target = torch.randn(2, 8, WIDTH)
    losses: list[Tensor] = []
    first, last = (any(getattr(stage, flag) for stage in stages) for flag in ("is_first", "is_last"))
    schedule.step(*([x] if first else []), **({"target": target, "losses": losses} if last else {}))
    found = [gradients(stage.submod) for stage in stages]
    for stage in stages:
        stage.submod.zero_grad()
    assert len(losses) == (4 if last else 0)
    return [losses, found]


def compare(name: str, way: str) -> None:
    assert_same(run(name, way), run(name, None), way)


@pytest.mark.parametrize("way", ["aotgrad_eager", "eager"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_steps_are_those_of_eager(two_ranks, name: str, way: str) -> None:
    two_ranks.run(compare, name, way)


@pytest.mark.parametrize("way", ["aotgrad_eager", "eager"])
def test_four_ranks(four_ranks, way: str) -> None:
    four_ranks.run(compare, "zero bubbles", way)


def test_steps_through_inductor(two_ranks) -> None:
    two_ranks.run(compare, "one forward, one backward", "aotgrad")
