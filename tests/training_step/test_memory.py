"""Steps that recompute or offload values for their `backward()`: with a memory budget, and in checkpointed regions."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import aotgrad
from tests.allocations import most_allocated
from tests.training_step.comparing import Training, assert_trains_like_eager, batches, build

BACKENDS = ["eager", "inductor"]
BUDGETS = [
    {"memory_budget": 0.0},
    {"memory_budget": 0.4},
    {"memory_budget": 0.6, "memory_budget_of": "peak"},
    {"offload": True},
]
WIDTH, ROWS = 64, 512


class Blocks(nn.Module):
    """Layers whose activations are larger than their parameters; each block in a region, if there are `settings`."""

    def __init__(self, dropout: float = 0.0, norm: type = nn.BatchNorm1d, **settings: object) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(dropout), norm(WIDTH), nn.Tanh()) for _ in range(4)
        )
        self.settings = settings

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, **self.settings) if self.settings else block(x)
        return aotgrad.checkpoint_name(x, "last")


def training(dropout: float = 0.0, scaled: bool = False, parts: int = 1, **settings: object) -> Training:
    """`parts`: into how many microbatches a batch is cut."""
    model = Blocks(dropout, **settings)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=scaled)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        x = x.detach().requires_grad_()
        for part, wanted in zip(x.chunk(parts), y.chunk(parts), strict=True):
            loss = nn.functional.mse_loss(model(part).cos(), wanted)
            scaler.scale(loss).backward()
            total += loss.detach()
        scaler.step(optimizer)
        scaler.update()
        return total

    return Training(step, [model, optimizer, scaler])


def data(count: int) -> list:
    return batches(count, rows=32, width=WIDTH, classes=WIDTH)


def peak(make: Callable[[], Training], backend: str = "eager", **options: object) -> int:
    """The most bytes of a later step, with large batches."""
    built = build(make)
    step = aotgrad.train_step(built.step, built.state, backend=backend, options=options)
    ((x, y),) = batches(1, rows=ROWS, width=WIDTH, classes=WIDTH)
    step(x, y)
    return most_allocated(lambda: step(x, y))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", BUDGETS, ids=str)
def test_steps_within_a_budget(options, backend):
    assert_trains_like_eager(training, data(3), backend, options=options)


@pytest.mark.parametrize("options", BUDGETS, ids=str)
@pytest.mark.parametrize("change", [{"dropout": 0.3}, {"scaled": True}, {"parts": 2}], ids=str)
def test_other_steps_within_a_budget(change, options):
    assert_trains_like_eager(lambda: training(**change), data(3), options=options)


@pytest.mark.parametrize("options", BUDGETS, ids=str)
def test_a_budget_without_kept_gradients(options):
    assert_trains_like_eager(training, data(3), options=options, keep_gradients=False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_steps(reentrant, backend):
    assert_trains_like_eager(lambda: training(use_reentrant=reentrant), data(3), backend)


@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_region_with_dropout_draws_as_in_eager(scaled, preserve):
    """Also where the values that a branch asks for are computed before the plan runs."""
    settings = {"use_reentrant": False, "preserve_rng_state": preserve}
    assert_trains_like_eager(lambda: training(0.3, scaled, **settings), data(3))


@pytest.mark.parametrize("scaled", [False, True])
def test_a_budget_lowers_the_peak(scaled):
    """Also where the guard computes what a branch asks for."""
    make = functools.partial(training, scaled=scaled)
    plain = peak(make)
    assert peak(make, memory_budget=0.3) < 0.75 * plain
    assert peak(make, memory_budget=0.5, memory_budget_of="peak") < 0.65 * plain  # the loss alone takes 0.6


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_region_saves_memory(backend):
    assert peak(functools.partial(training, use_reentrant=False), backend) < 0.7 * peak(training, backend)


def test_each_microbatch_has_a_partition():
    cut = functools.partial(training, parts=2)
    assert peak(cut, memory_budget=0.3) < 0.8 * peak(cut)


def test_a_policy_says_what_is_saved():
    def keeps_products(ctx: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE

    context_fn = functools.partial(create_selective_checkpoint_contexts, keeps_products)
    settings = {"norm": nn.LayerNorm, "use_reentrant": False, "context_fn": context_fn}
    step = assert_trains_like_eager(lambda: training(**settings), data(2))
    recomputed = [value.name for value in step.plans()[-1].executable.partition.recomputed]
    assert "gelu" in recomputed and "addmm" not in recomputed


def test_a_name_says_what_is_recomputed():
    step = assert_trains_like_eager(training, data(2), options={"checkpoint_policies": {"last": "recompute"}})
    assert any("tanh" in value.name for value in step.plans()[-1].executable.partition.recomputed)


def test_a_report_tells_what_is_recomputed():
    built = build(training)
    step = aotgrad.train_step(built.step, built.state, backend="eager", options={"memory_budget": 0.3})
    (batch,) = batches(1, rows=ROWS, width=WIDTH, classes=WIDTH)
    report = aotgrad.explain(step)(*batch)
    assert report.recomputed and report.peak_bytes < aotgrad.explain(plain_step())(*batch).peak_bytes


def plain_step() -> Callable:
    built = build(training)
    return aotgrad.train_step(built.step, built.state, backend="eager")


def test_gradients_inside_of_a_differentiable_function_keep_their_values():
    """A budget is about the backward outside; a region inside is recomputed for it, too."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(lambda x: x.exp().sin(), x, use_reentrant=False)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y + gradient.cos()

    x = torch.linspace(-1, 1, 6, requires_grad=True)
    for options in ({}, {"memory_budget": 0.0}):
        compiled = aotgrad.aot_function(function, aotgrad.nop, options=options)
        (found,), (wanted,) = (torch.autograd.grad(each(x).sum(), x) for each in (compiled, function))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_values_wait_on_the_host_for_several_backwards():
    """The second backward reads what the first one has fetched; the copies of the first one stay where they are."""

    def make() -> Training:
        model = Blocks(use_reentrant=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            loss = nn.functional.mse_loss(model(x), y) + gradient.square().sum()
            (loss / 2).backward(retain_graph=True)
            (loss / 2).backward()
            optimizer.step()
            return loss

        return Training(step, [model, optimizer])

    assert_trains_like_eager(make, data(2), options={"offload": True})
