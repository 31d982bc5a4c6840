"""A read of an optimizer holds until something but a number changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from aotgrad.training_step.optimizer_state import OptimizerState
from aotgrad.training_step.state import State


def stepped() -> torch.optim.Optimizer:
    """An optimizer with a state, and with a list among its hyperparameters."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["bounds"] = [0.0, 1.0]
    return optimizer


def first_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return next(iter(optimizer.state.values()))


NUMBERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "nothing": lambda optimizer: None,
    "lr": lambda optimizer: optimizer.param_groups[0].update(lr=0.05),
    "betas": lambda optimizer: optimizer.param_groups[0].update(betas=(0.8, 0.9)),
    "a number in a list": lambda optimizer: optimizer.param_groups[0]["bounds"].__setitem__(0, 0.5),
    "a value in place": lambda optimizer: first_state(optimizer)["exp_avg"].zero_(),
}
CHANGES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lr of another type": lambda optimizer: optimizer.param_groups[0].update(lr=1),
    "lr as a tensor": lambda optimizer: optimizer.param_groups[0].update(lr=torch.tensor(0.1)),
    "a flag": lambda optimizer: optimizer.param_groups[0].update(amsgrad=True),
    "a longer list": lambda optimizer: optimizer.param_groups[0]["bounds"].append(2.0),
    "an entry of a group": lambda optimizer: optimizer.param_groups[0].update(new=1),
    "one entry in place of another": lambda optimizer: optimizer.param_groups[0].update(
        new=optimizer.param_groups[0].pop("bounds")
    ),
    "a parameter": lambda optimizer: optimizer.param_groups[0]["params"].__setitem__(0, nn.Parameter(torch.ones(2, 2))),
    "one parameter less": lambda optimizer: optimizer.param_groups[0]["params"].pop(),
    "the order of parameters": lambda optimizer: optimizer.param_groups[0]["params"].reverse(),
    "a group": lambda optimizer: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
    "another group": lambda optimizer: optimizer.param_groups.__setitem__(0, dict(optimizer.param_groups[0])),
    "an entry of the state": lambda optimizer: first_state(optimizer).update(new=1.0),
    "another tensor": lambda optimizer: first_state(optimizer).update(exp_avg=torch.zeros(2, 2)),
    "no state": lambda optimizer: optimizer.state.clear(),
    "a loaded state": lambda optimizer: optimizer.load_state_dict(optimizer.state_dict()),
    "a default": lambda optimizer: optimizer.defaults.update(lr=1.0),
    "an attribute": lambda optimizer: setattr(optimizer, "mark", 1),
    "a hook": lambda optimizer: optimizer.register_step_pre_hook(lambda *_: None),
}


@pytest.mark.parametrize("change", NUMBERS)
def test_a_state_holds(change: str) -> None:
    optimizer = stepped()
    state = OptimizerState(optimizer)
    NUMBERS[change](optimizer)
    assert state.is_current()


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_does_not_hold(change: str) -> None:
    optimizer = stepped()
    state = OptimizerState(optimizer)
    assert state.is_current()
    CHANGES[change](optimizer)
    assert not state.is_current()


def test_what_was_read_is_read_once() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    state = State.of([model, optimizer])
    first = state.read()
    for _ in range(3):
        scheduler.step()
        optimizer.zero_grad()
        assert state.read().key is first.key
    assert pytest.approx(1e-6) in state.read().numbers.values
    assert all(first.has_gradient[:2]) and not any(state.read().has_gradient)
    model.scale = 2.0
    assert state.read().key is not first.key
