"""Numbers of steps that are equal are computed with once; a guard tells when they are not equal any more."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn

import aotgrad
from tests.training_step.comparing import Training, assert_trains_like_eager, batches, plain_step

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "one by one": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=False),
    "lists": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "nadam lists": lambda parameters: torch.optim.NAdam(parameters, lr=0.01, foreach=True),
    "asgd": lambda parameters: torch.optim.ASGD(parameters, lr=0.01),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=0.01),
    "radam": lambda parameters: torch.optim.RAdam(parameters, lr=0.01),
    "adamax": lambda parameters: torch.optim.Adamax(parameters, lr=0.01, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
}

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
BACKENDS = ("eager", "inductor")
PLANS = {("adafactor", "inductor"): 3}
"""Where there are more than two: Inductor computes `lerp` in one of two ways, by whether its weight is at least 0.5. That of
Adafactor is, in the second step, and is not from the third on."""


def model_of(layers: int) -> nn.Module:
    sizes = [4] * layers + [2]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))


def set_step(optimizer: torch.optim.Optimizer, place: int, value: float) -> None:
    [*optimizer.state.values()][place]["step"].fill_(value)


def make(name: str, between: Callable[[torch.optim.Optimizer, int], None] = lambda optimizer, k: None) -> Training:
    torch.manual_seed(0)
    model = model_of(3)
    optimizer = OPTIMIZERS[name](model.parameters())
    return Training(plain_step(model, optimizer), [model, optimizer], lambda k: between(optimizer, k))


@pytest.mark.parametrize("backend", BACKENDS)
@every_optimizer
def test_the_numbers_stay_equal(name: str, backend: str):
    assert_trains_like_eager(lambda: make(name), batches(5), backend, plans=PLANS.get((name, backend), 2))


@pytest.mark.parametrize(("name", "backend"), [*((name, "eager") for name in OPTIMIZERS), ("lists", "inductor")])
@pytest.mark.parametrize("value", [7.0, 0.0, -0.0])
def test_one_number_becomes_another(name: str, backend: str, value: float):
    """From then on, and back."""

    def between(optimizer: torch.optim.Optimizer, k: int) -> None:
        if k == 2:
            set_step(optimizer, 1, value)
        elif k == 4:
            set_step(optimizer, 1, 9.0)
            for place in (0, 2, 3, 4, 5):
                set_step(optimizer, place, 9.0)

    assert_trains_like_eager(lambda: make(name, between), batches(7), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_optimizers_of_different_age(backend: str):
    def training() -> Training:
        torch.manual_seed(0)
        model = model_of(2)
        optimizers = [torch.optim.AdamW(layer.parameters(), lr=0.01) for layer in model.children()]
        step = plain_step(model, optimizers[0])

        def both(x, y):
            loss = step(x, y)
            optimizers[1].step()
            optimizers[1].zero_grad()
            return loss

        def between(k: int) -> None:
            if k == 1:
                for place in range(2):
                    set_step(optimizers[1], place, 100.0)

        return Training(both, [model, *optimizers], between)

    assert_trains_like_eager(training, batches(5), backend)


@pytest.mark.parametrize("name", ["one by one", "lists"])
def test_how_much_is_left_for_each_parameter(name: str):
    """One read in the guard for each number, one write for each new one, and no arithmetic in Python."""
    counts = [counts_of(layers, name) for layers in (2, 6)]
    added = {kind: counts[1][kind] - counts[0][kind] for kind in counts[0]}
    parameters = 2 * (6 - 2)
    assert added["conditions"] == 0 and added["floats"] == 0
    assert added["ops of the guard"] == parameters
    assert added["numbers on the host"] == parameters


def counts_of(layers: int, name: str) -> dict[str, int]:
    model = model_of(layers)
    optimizer = OPTIMIZERS[name](model.parameters())
    step = aotgrad.train_step(plain_step(model, optimizer), state=[model, optimizer], backend="eager")
    for x, y in batches(3):
        step(x, y)
    executable = max(step.plans(), key=lambda plan: plan.hits).executable
    nodes = [node for node in executable.partition.forward.module.graph.nodes if node.op == "call_function"]
    steps = {values["step"].data_ptr() for values in optimizer.state.values()}
    assert len(steps) == 2 * layers  # each parameter still has its own
    return {
        "conditions": len(executable.value_guard.conditions),
        "ops of the guard": sum(node.op == "call_function" for node in executable.value_guard.compute.graph.nodes),
        "floats": sum(isinstance(node.meta.get("val"), torch.SymFloat) for node in nodes),
        "numbers on the host": sum(
            node.target is torch.ops.aten.copy_.default and node.args[0].meta["val"].dim() == 0 for node in nodes
        ),
    }
