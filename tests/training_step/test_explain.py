"""Reports on a step: names, memory, and the picture of it."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.inspect.command_line import main
from tests.allocations import most_allocated


def with_adamw(width: int, layers: int, keep_gradients: bool):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    @aotgrad.train_step(state=[model, optimizer], keep_gradients=keep_gradients, backend="eager")
    def step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_the_names_of_a_state():
    step = with_adamw(4, 1, True)
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    step(x, y)
    rows = {row.name: row.kind for row in aotgrad.explain(step)(x, y).inputs}
    assert rows == {
        "0.0.weight": "parameter",
        "0.0.bias": "parameter",
        **{f"{name} of 0.0.weight": "optimizer state" for name in ("step", "exp_avg", "exp_avg_sq")},
        **{f"{name} of 0.0.bias": "optimizer state" for name in ("step", "exp_avg", "exp_avg_sq")},
        "0.0.weight.grad": "gradient",
        "0.0.bias.grad": "gradient",
        "numbers": "numbers",
        "x": "argument",
        "y": "argument",
    }


def test_two_models_and_a_tensor():
    first, second, total = nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False), torch.zeros(())

    def step(x):
        total.add_(second(first(x)).sum().detach())

    report = aotgrad.explain(aotgrad.train_step(step, [first, second, total], backend="eager"))(torch.ones(1, 2))
    assert [row.name for row in report.inputs] == [
        "modules[0].weight",
        "modules[1].weight",
        "state tensor 2",
        "numbers",
        "x",
    ]


@pytest.mark.parametrize("rows", [16, 512])
@pytest.mark.parametrize("keep_gradients", [True, False])
def test_the_peak_of_a_step(rows: int, keep_gradients: bool):
    """That of the backward with many rows, and that of the update with few."""
    step = with_adamw(256, 6, keep_gradients)
    x, y = torch.randn(rows, 256), torch.randn(rows, 256)
    step(x, y)
    measured = most_allocated(lambda: step(x, y))
    assert aotgrad.explain(step)(x, y).peak_bytes == pytest.approx(measured, rel=0.05)


STEP = """
import torch
import aotgrad

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@aotgrad.train_step(state=[model, optimizer], backend="eager")
def step(x):
    model(x).sum().backward()
    optimizer.step()
"""


def test_from_the_command_line(capsys, tmp_path):
    file, picture = tmp_path / "training.py", tmp_path / "memory.svg"
    file.write_text(STEP)
    assert main(["explain", f"{file}:step", "--inputs", "f32[2, 3]", "--json", "--plot", str(picture)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["peak_bytes"] > 0
    assert "<svg" in picture.read_text()
