"""Steps that scale the loss, and skip the update where a gradient is infinite."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.errors import CaptureError
from aotgrad.guards.data_dependent import ValueGuard
from aotgrad.plan_cache.cache import ROUNDED
from tests.training_step.comparing import Batches, Training, assert_trains_like_eager, batches, build

mse = nn.functional.mse_loss
both = pytest.mark.parametrize("backend", ["eager", "inductor"])


def model_of_two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def model_with_dropout() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 2))


def scaler_of() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)


def some_infinite(count: int, at: tuple[int, ...] = (0, 3)) -> Batches:
    """Batches, a few of them with an infinite target."""
    data = batches(count)
    for k in at:
        data[k][1][0, 0] = float("inf")
    return data


def training_with(
    kind: Callable[..., torch.optim.Optimizer],
    between: Callable | None = None,
    make_model: Callable[[], nn.Module] = model_of_two_layers,
    result: Callable[[torch.Tensor], torch.Tensor] = lambda loss: loss,
    **settings: Any,
) -> Training:
    model, scaler = make_model(), scaler_of()
    optimizer = kind(model.parameters(), lr=0.1, **settings)

    def step(x, y):
        optimizer.zero_grad()
        loss = mse(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return result(loss)

    return Training(step, [model, optimizer, scaler], lambda k: between(k, scaler) if between else None)


OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any], int]] = {
    "SGD": (torch.optim.SGD, {"momentum": 0.9}, 4),
    "foreach AdamW": (torch.optim.AdamW, {"foreach": True}, 4),
    "fused AdamW": (torch.optim.AdamW, {"fused": True}, 2),
}
"""Optimizers, and how many plans they have: with state or without, and for finite or infinite gradients. A fused update
decides in its kernel."""


@both
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_infinite_gradient_skips_the_update(name, backend):
    kind, settings, plans = OPTIMIZERS[name]
    assert_trains_like_eager(lambda: training_with(kind, **settings), some_infinite(8), backend, plans=plans)


def with_clipping() -> Training:
    model, scaler = model_of_two_layers(), scaler_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mse(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        return loss, before

    return Training(step, [model, optimizer, scaler])


def with_two_optimizers() -> Training:
    model, scaler = model_of_two_layers(), scaler_of()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]

    def step(x, y):
        model.zero_grad()
        scaler.scale(mse(model(x), y)).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()

    return Training(step, [model, *optimizers, scaler])


def with_dropout() -> Training:
    return training_with(torch.optim.SGD, make_model=model_with_dropout, result=lambda loss: loss + torch.rand(()))


@pytest.mark.parametrize("make", [with_clipping, with_two_optimizers, with_dropout], ids=lambda make: make.__name__)
def test_a_way_to_scale(make):
    assert_trains_like_eager(make, some_infinite(7))


def test_the_plan_takes_what_its_guard_has_computed():
    step = assert_trains_like_eager(lambda: training_with(torch.optim.SGD), some_infinite(6, at=(1,)))
    for plan in step.plans():
        called = [node.target for node in plan.executable.joint.module.graph.nodes]
        assert plan.takes_guarded and torch.ops.aten.mm.default not in called
        assert any(node.target is torch.ops.aten.mm.default for node in plan.guards.values.compute.graph.nodes)


def test_a_branch_on_the_loss_draws_each_number_once():
    def make():
        model = model_with_dropout()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            if loss > 1.5:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            return loss, torch.rand(3)

        return Training(step, [model, optimizer])

    assert_trains_like_eager(make, batches(6))


def test_a_value_at_the_threshold_runs_eagerly():
    found = build(lambda: training_with(torch.optim.SGD))
    step = aotgrad.train_step(found.step, found.state, backend="eager")
    with mock.patch.object(ValueGuard, "__call__", lambda guard, tensors: False):
        step(*batches(1)[0])
    assert step.plan_cache.fallbacks == {ROUNDED: 1}


def load_other_state(k: int, scaler: torch.amp.GradScaler) -> None:
    if k == 3:
        scaler.load_state_dict({**copy.deepcopy(scaler.state_dict()), "scale": 2.0, "_growth_tracker": 0})


def grow_faster(k: int, scaler: torch.amp.GradScaler) -> None:
    if k == 3:
        scaler.set_growth_factor(8.0)


@pytest.mark.parametrize(("between", "plans"), [(load_other_state, 2), (grow_faster, 3)])
def test_a_change_between_steps(between, plans):
    assert_trains_like_eager(lambda: training_with(torch.optim.SGD, between), batches(8), plans=plans)


def test_a_scaler_that_is_not_enabled():
    def make():
        model, scaler = model_of_two_layers(), torch.amp.GradScaler("cpu", enabled=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            scaler.scale(mse(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()

        return Training(step, [model, optimizer, scaler])

    assert_trains_like_eager(make, batches(3), plans=2)


def test_an_update_that_is_missing():
    found = build(lambda: training_with(torch.optim.SGD))
    model, optimizer, scaler = found.state

    def step(x):
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)

    with pytest.raises(CaptureError, match="its update\\(\\) is not in the same step; call unscale_\\(\\), step\\(\\) and"):
        aotgrad.train_step(step, found.state, backend="eager")(torch.ones(4))
    assert scaler.state_dict()["scale"] == 4.0 and not scaler._per_optimizer_states
