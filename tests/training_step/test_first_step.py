"""The plan of the step that creates an optimizer's state serves one call, so no fusing backend compiles it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.training_step.comparing import Training, assert_trains_like_eager, batches, plain_step


def training(make_optimizer) -> Training:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = make_optimizer(model.parameters())
    return Training(plain_step(model, optimizer), [model, optimizer])


class Replacing(torch.optim.Optimizer):
    """Replaces an entry of its state in each step."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["average"] = parameter.grad + state.get("average", 0)
            parameter.sub_(state["average"], alpha=self.param_groups[0]["lr"])


OPTIMIZERS = {
    "state made in the first step": (torch.optim.AdamW, ["eager", "inductor"]),
    "no state": (lambda parameters: torch.optim.SGD(parameters, lr=0.1), ["inductor", "inductor"]),
    "state replaced in each step": (Replacing, ["eager", "inductor"]),
}


@pytest.mark.parametrize(("make", "backends"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_what_compiles_each_plan(make, backends) -> None:
    step = assert_trains_like_eager(lambda: training(make), batches(3), "inductor")
    assert sorted(plan.executable.compiled.backend for plan in step.plans()) == backends


def test_a_parameter_that_gets_its_first_gradient_later() -> None:
    """Its state is made then, in one more step of its own."""

    def make() -> Training:
        used, later = nn.Linear(4, 2), nn.Linear(4, 2)
        optimizer = torch.optim.Adam([*used.parameters(), *later.parameters()])

        def step(x, y, both):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(used(x) + later(x) if both else used(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return Training(step, [nn.ModuleList([used, later]), optimizer])

    data = [(*batch, k > 1) for k, batch in enumerate(batches(5))]
    step = assert_trains_like_eager(make, data, "inductor", plans=4)
    assert [plan.executable.compiled.backend for plan in step.plans()].count("eager") == 2


def test_another_backend_compiles_all_plans() -> None:
    compiled = []

    def compile_graph(graph, inputs):
        compiled.append(graph)
        return graph.forward

    assert_trains_like_eager(lambda: training(torch.optim.AdamW), batches(3), compile_graph, plans=2)
    assert len(compiled) == 2
