"""The whole step of a two-layer model, as one graph and as the function that runs it."""

from __future__ import annotations

import inspect
import re
import textwrap

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.passes.guarded_values import as_joint
from aotgrad.printing.stages import text
from aotgrad.telemetry.observer import record_stages


def two_layers():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, [model, optimizer]


def steady_stage(name: str, title: str = "The second step of a two-layer model.", keep_gradients: bool = True) -> str:
    """A stage of the second step, which finds the optimizer's state."""
    function, state = two_layers()
    step = aotgrad.train_step(function, state, backend="eager", keep_gradients=keep_gradients)
    x, y = torch.ones(2, 4), torch.ones(2, 1)
    step(x, y)
    with record_stages() as stages:
        step(x, y)
    (found,) = [stage.text for stage in stages if stage.name == name]
    source = textwrap.dedent(inspect.getsource(two_layers))
    return f"# {title}\n\n{source}\n--- {name} ---\n\n{found}\n"


def test_the_graph_of_a_whole_step(golden):
    golden("training_step/graph", steady_stage("joint"))


def test_the_function_of_a_whole_step(golden):
    golden("training_step/function", steady_stage("executable"))


def test_the_graph_with_early_updates(golden):
    title = "Without gradients that are kept, each parameter is updated when its gradient is ready."
    golden("training_step/early_updates", steady_stage("joint", title, keep_gradients=False))


def checkpointed_step():
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step(x):
        loss = checkpoint(lambda x: layer(x).exp().tanh(), x, use_reentrant=False).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, [layer, optimizer]


def test_the_graph_of_a_checkpointed_step(golden):
    """The backward recomputes the product and `exp`; it starts from what the region was given."""
    function, state = checkpointed_step()
    step = aotgrad.train_step(function, state, backend="eager")
    with record_stages() as stages:
        step(torch.ones(3, 2))
    (found,) = [stage.text for stage in stages if stage.name == "partition"]
    source = textwrap.dedent(inspect.getsource(checkpointed_step))
    golden(
        "training_step/recomputed",
        f"# A checkpointed region is recomputed in a step.\n\n{source}\n--- partition ---\n\n{found}\n",
    )


def scaled_step():
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    scaler = torch.amp.GradScaler("cpu")

    def step(x):
        optimizer.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, [model, optimizer, scaler]


def test_a_plan_takes_what_its_guard_has_computed(golden):
    function, state = scaled_step()
    step = aotgrad.train_step(function, state, backend="eager")
    step(torch.ones(2, 4)), step(torch.ones(2, 4))
    plan = step.plans()[-1]
    guard = plan.guards.values
    parts = [
        "# An update depends on whether gradients are finite: the guard computes them, and the plan takes them.",
        textwrap.dedent(inspect.getsource(scaled_step)),
        "--- guard ---",
        text(as_joint(guard.compute, frozenset())),
        re.sub(r"/.*/(\w+[.]py):\d+", r"\1:LINE", "\n".join(guard.lines())),
        "--- joint ---",
        text(plan.executable.joint),
    ]
    golden("training_step/scaled", "\n\n".join(part.rstrip("\n") for part in parts) + "\n")
