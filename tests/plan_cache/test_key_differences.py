"""The warning at the limit of plans says what keeps changing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aotgrad

LIMIT = {"plan_limit": 1}


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(2, 2), 0.5

    def forward(self, x, *, mode="sum"):
        return {"sum": torch.sum, "mean": torch.mean}[mode](self.linear(x)) * self.scale


def warning_of(call, change) -> str:
    """What the second call warns of, after a change."""
    call()
    change()
    with pytest.warns(UserWarning, match="the limit") as warned:
        call()
    return str(warned[0].message).partition("What keeps changing: ")[2]


def test_a_python_argument():
    numbers = [0.5, 0.25]
    call = aotgrad.aot_function(lambda x, scale: x * scale, "eager", options=LIMIT)
    text = warning_of(lambda: call(torch.ones(2), numbers[0]), numbers.reverse)
    assert text == "args[1] is 0.25, and was 0.5 (as a tensor, it would share one plan)"


def test_a_keyword_of_a_module():
    modes = ["sum", "mean"]
    call = aotgrad.aot_module(Scaled(), "eager", options=LIMIT)
    assert warning_of(lambda: call(torch.ones(2), mode=modes[0]), modes.reverse) == "kwargs['mode'] is 'mean', and was 'sum'"


def test_the_number_and_nesting_of_arguments():
    given = [[torch.ones(2)]]
    call = aotgrad.aot_function(lambda values: sum(values), "eager", options=LIMIT)
    text = warning_of(lambda: call(*given), lambda: given[0].append(torch.ones(2)))
    assert text == "the structure of the arguments has changed"


def test_a_variable_that_the_function_reads():
    scale = 2

    def change():
        nonlocal scale
        scale = 3

    call = aotgrad.aot_function(lambda x: x * scale, "eager", options=LIMIT)
    assert warning_of(lambda: call(torch.ones(2)), change) == "scale is 3, and was 2"


MODULE_CHANGES = {
    "an attribute": (lambda model: setattr(model[0], "scale", 0.1), "0.scale is 0.1, and was 0.5 "),
    "a hook": (lambda model: model[0].linear.register_forward_hook(lambda *_: None), "0.linear.hooks has changed"),
    "the mode": (lambda model: model.eval(), "training is False, and was True; 0.training is False"),
}


@pytest.mark.parametrize("name", MODULE_CHANGES)
@pytest.mark.parametrize("kind", ["aot_module", "train_step"])
def test_the_state_of_a_module(name: str, kind: str):
    change, expected = MODULE_CHANGES[name]
    model = nn.Sequential(Scaled())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        model(x).backward()
        optimizer.step()

    made = {
        "aot_module": lambda: aotgrad.aot_module(model, "eager", options=LIMIT),
        "train_step": lambda: aotgrad.train_step(step, [model, optimizer], backend="eager", options={"plan_limit": 2}),
    }
    call = made[kind]()
    if kind == "train_step":
        call(torch.ones(2))  # has no gradients to accumulate
    assert warning_of(lambda: call(torch.ones(2)), lambda: change(model)).startswith(expected)
