"""What is saved of checkpointed regions, traced with and without Dynamo: what eager saves, and no more."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import aotgrad
from tests.executables import executable_of

RUNS = {
    "aot_module": lambda module: aotgrad.aot_module(module, aotgrad.nop),
    "dynamo": lambda module: torch.compile(module, backend="aotgrad_eager"),
}


class Blocks(nn.Module):
    """Two blocks, each in a region of its own; `after`: ops behind them, outside of all regions."""

    def __init__(self, after: Callable = torch.sum, **settings: object) -> None:
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8), nn.Tanh()) for _ in range(2))
        self.blocks, self.after, self.settings = nn.ModuleList(blocks), after, settings

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, **self.settings)
        return self.after(x)


def saved_by(module: nn.Module, run: str) -> list[str]:
    """The values that the compiled module saves, without those that are alive anyway."""
    torch._dynamo.reset()
    report = aotgrad.explain(RUNS[run](module))(torch.randn(64, 8, requires_grad=True))
    return [row.name for row in report.saved if row.bytes]


def keeps_products(ctx: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("run", RUNS)
def test_a_region_saves_its_argument(run, reentrant):
    assert saved_by(Blocks(use_reentrant=reentrant), run) == ["x", "tanh"]


@pytest.mark.parametrize("run", RUNS)
def test_an_op_behind_a_region_saves_what_it_needs(run):
    module = Blocks(lambda x: x.square().sum(), use_reentrant=False)
    assert saved_by(module, run) == ["x", "tanh", "tanh_1"]


@pytest.mark.parametrize("run", RUNS)
def test_a_policy_saves_what_it_names(run):
    context_fn = functools.partial(create_selective_checkpoint_contexts, keeps_products)
    assert saved_by(Blocks(use_reentrant=False, context_fn=context_fn), run) == ["x", "addmm", "tanh", "addmm_2", "addmm_3"]


def test_a_policy_ends_with_its_region():
    context_fn = functools.partial(create_selective_checkpoint_contexts, keeps_products)

    def function(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: x.cos().tanh(), x, use_reentrant=False, context_fn=context_fn).sin().exp()

    nodes = executable_of(function, "f32[4] requires_grad").joint.module.graph.nodes
    tagged = {node.name: "recompute" in node.meta for node in nodes}
    assert [tagged[name] for name in ("cos", "tanh", "sin", "exp")] == [True, True, False, False]


@pytest.mark.parametrize("run", RUNS)
def test_a_region_within_a_region_saves_nothing(run):
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = Blocks(lambda x: x, use_reentrant=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.blocks, x, use_reentrant=False).sum()

    assert saved_by(Nested(), run) == ["x"]
