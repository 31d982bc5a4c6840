"""Every optimizer of torch, in each configuration that torch's own tests use, beside eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.training_step.comparing import Training, assert_trains_like_eager, batches, plain_step
from tests.training_step.configurations import CONFIGURATIONS, Configuration, batches_of, models_for, training_of


def training_with(kind: type[torch.optim.Optimizer], settings: dict[str, Any]) -> Training:
    """A small model, whose learning rate changes after each step."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 2, bias=False))
    optimizer = Configuration(kind, settings).optimizer(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

    return Training(plain_step(model, optimizer), [model, optimizer], lambda k: scheduler.step())


every_configuration = pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
pytestmark = pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")


@every_configuration
def test_a_configuration(configuration):
    assert_trains_like_eager(lambda: training_with(configuration.kind, configuration.settings), batches(5), plans=2)


@every_configuration
def test_a_configuration_with_early_updates(configuration):
    make = lambda: training_with(configuration.kind, configuration.settings)  # noqa: E731
    assert_trains_like_eager(make, batches(3), keep_gradients=False)


@pytest.mark.parametrize(("place", "configuration"), [*enumerate(CONFIGURATIONS)], ids=str)
def test_a_configuration_trains_a_model(place, configuration):
    """Each with one of the models, in turn; `scripts/conformance/optimizers.py` trains all of them."""
    cases = models_for(configuration)
    case = cases[place % len(cases)]
    assert_trains_like_eager(lambda: training_of(case, configuration), batches_of(case, 3), plans=2)


def test_a_threshold_of_the_step_count_makes_one_plan_more():
    assert_trains_like_eager(lambda: training_with(torch.optim.RAdam, {}), batches(12), plans=3)


THROUGH_INDUCTOR = [
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"foreach": True, "amsgrad": True}),
    (torch.optim.Adam, {"fused": True}),
    (torch.optim.ASGD, {"foreach": False}),
    (torch.optim.NAdam, {"foreach": True}),
]


@pytest.mark.parametrize(("kind", "settings"), THROUGH_INDUCTOR, ids=lambda value: getattr(value, "__name__", ""))
def test_with_inductor(kind, settings):
    assert_trains_like_eager(lambda: training_with(kind, settings), batches(4), "inductor", plans=2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("foreach", [False, True])
def test_parameters_of_another_dtype(dtype, foreach):
    def make():
        found = training_with(torch.optim.AdamW, {"foreach": foreach})
        found.state[0].to(dtype)
        return found

    assert_trains_like_eager(make, [(x.to(dtype), y.to(dtype)) for x, y in batches(4)], plans=2)


def test_several_groups_and_frozen_and_tied_parameters():
    def make():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(2, 2))
        model[1].weight = model[0].weight
        model[3].requires_grad_(False)
        groups = [{"params": model[:2].parameters(), "lr": 0.1}, {"params": model[2:].parameters(), "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)

        return Training(plain_step(model, optimizer), [model, optimizer])

    assert_trains_like_eager(make, batches(4), plans=2)


def test_an_optimizer_of_the_users_own_that_counts_in_python():
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    state["step"] = state.get("step", 0.0) + 1.0
                    rate = min(group["lr"], group["lr"] * state["step"] / 3)
                    parameter.add_(parameter.grad, alpha=-rate / state["step"] ** 0.5)

    assert_trains_like_eager(lambda: training_with(Own, {"lr": 0.1}), batches(5), plans=2)
