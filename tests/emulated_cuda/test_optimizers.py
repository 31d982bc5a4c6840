"""Training steps with the optimizers of a GPU, whose defaults differ from those of a CPU: ops on lists of tensors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import aotgrad

SETTINGS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {}),
    "adamw, one by one": (torch.optim.AdamW, {"foreach": False}),
    "adamw, capturable": (torch.optim.AdamW, {"capturable": True}),
    "adam with amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "nadam": (torch.optim.NAdam, {}),
    "asgd": (torch.optim.ASGD, {}),
    "radam": (torch.optim.RAdam, {}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_training_step_is_eagers_bit_for_bit(name: str):
    kind, settings = SETTINGS[name]
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))).cuda()
    models = [model, copy.deepcopy(model)]
    optimizers = [kind(each.parameters(), lr=0.01, **settings) for each in models]

    def step_of(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    eager, step = (step_of(*each) for each in zip(models, optimizers, strict=True))
    compiled = aotgrad.train_step(step, state=[models[1], optimizers[1]], backend="eager")
    for _ in range(5):
        x = torch.randn(2, 4, device="cuda")
        assert torch.equal(eager(x), compiled(x))
        torch.testing.assert_close([*models[1].parameters()], [*models[0].parameters()], rtol=0, atol=0)
        states = [[*each.state.values()] for each in optimizers]
        torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)
    assert len(compiled.plans()) <= 3
