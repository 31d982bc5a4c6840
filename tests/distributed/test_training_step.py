"""Whole training steps of tensor parallel models, on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import aotgrad
from tests.distributed.programs import assert_same, gradients
from tests.distributed.test_tensor_parallel import batches, parallel


def steps(kind: str, backend: str) -> None:
    """Compare losses, gradients and parameters after each step, with a schedule."""

    def run(compile_step: Callable[..., Callable]) -> list[Any]:
        model = parallel(init_device_mesh("cpu", (dist.get_world_size(),)), kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

        def step(tokens: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(tokens)
            loss.backward()
            if kind == "sequence":  # else torch refuses: some parameters are no DTensors
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return loss

        call, found = compile_step(step, [model, optimizer]), []
        for batch in batches():
            found.append((call(batch).detach(), gradients(model), [each.detach().clone() for each in model.parameters()]))
            scheduler.step()
        return found

    whole: list[Any] = []

    def compile_step(step: Callable, state: list[Any]) -> Callable:
        whole.append(aotgrad.train_step(step, state, backend=backend))
        return whole[0]

    assert_same(run(compile_step), run(lambda step, state: step), f"aotgrad_{backend}", rtol=1e-4, atol=1e-5)
    assert len(whole[0].plans()) == 2 and not whole[0].plan_cache.fallbacks


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("kind", ["tensor", "sequence"])
def test_steps_are_those_of_eager(two_ranks, kind: str, backend: str) -> None:
    two_ranks.run(steps, kind, backend)
