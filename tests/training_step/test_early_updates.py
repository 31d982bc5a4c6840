"""With `keep_gradients=False`, each parameter is updated when its gradient is ready, and the gradient is freed then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aotgrad
from tests.allocations import most_allocated
from tests.training_step.comparing import Training, assert_trains_like_eager, batches, plain_step

WIDTH, LAYERS = 128, 5
BYTES = 4 * WIDTH * WIDTH
"""Of one parameter."""


def deep_model() -> nn.Module:
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(LAYERS))
    return nn.Sequential(*layers)


def peak_of_a_step(make_optimizer, backend: str, keep_gradients: bool, clips: bool = False) -> int:
    model = deep_model()
    optimizer = make_optimizer(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    compiled = aotgrad.train_step(step, [model, optimizer], keep_gradients=keep_gradients, backend=backend)
    x = torch.ones(8, WIDTH)
    compiled(x)
    return most_allocated(lambda: compiled(x))


OPTIMIZERS = {
    "for-loop": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, momentum=0.9, weight_decay=0.1),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_few_gradients_are_alive_at_once(make) -> None:
    assert peak_of_a_step(make, "eager", keep_gradients=False) < 3.5 * BYTES
    assert peak_of_a_step(make, "eager", keep_gradients=True) > LAYERS * BYTES


@pytest.mark.parametrize("kind", ["foreach", "momentum"])
def test_few_gradients_are_alive_at_once_with_inductor(kind: str) -> None:
    assert peak_of_a_step(OPTIMIZERS[kind], "inductor", keep_gradients=False) < 3.5 * BYTES


def test_clipping_by_the_norm_needs_all_gradients() -> None:
    assert peak_of_a_step(OPTIMIZERS["foreach"], "eager", keep_gradients=False, clips=True) >= LAYERS * BYTES


def clipped() -> Training:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    return Training(plain_step(model, optimizer, max_norm=0.1), [model, optimizer])


def updated_twice() -> Training:
    """The second forward reads what the first update has left."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    once = plain_step(model, optimizer)
    return Training(lambda x, y: (once(x, y), once(y @ x[:2], y)), [model, optimizer])


def averaged() -> Training:
    """An average of the parameters reads each update; batch norm has a state of its own."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 2))
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True, amsgrad=True)
    once = plain_step(model, optimizer)

    def step(x, y):
        loss = once(x, y)
        average.update_parameters(model)
        return loss

    return Training(step, [model, optimizer, average])


def tied_and_returned() -> Training:
    """A parameter that two layers share, and one that the step returns."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    once = plain_step(model, optimizer)
    return Training(lambda x, y: (once(x, y), model[3].bias), [model, optimizer])


def with_dropout() -> Training:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    return Training(plain_step(model, optimizer), [model, optimizer])


def test_numbers_are_drawn_in_the_same_order() -> None:
    assert_trains_like_eager(with_dropout, batches(4), keep_gradients=False)


@pytest.mark.parametrize("make", [clipped, updated_twice, averaged, tied_and_returned])
def test_results_are_those_of_eager(make) -> None:
    assert_trains_like_eager(make, batches(4), keep_gradients=False)


@pytest.mark.parametrize("make", [updated_twice, averaged])
def test_results_are_those_of_eager_with_inductor(make) -> None:
    assert_trains_like_eager(make, batches(4), "inductor", keep_gradients=False)


@pytest.mark.parametrize("only_on", ["cpu", "meta"])
def test_lists_are_split_on_chosen_devices_only(only_on: str) -> None:
    lengths: set[int] = set()

    def compile_graph(graph, inputs):
        lists = (node.args[0] for node in graph.graph.nodes if "_foreach_" in str(node.target))
        lengths.update(map(len, lists))
        return graph.forward

    training = clipped()
    options = {"joint_passes": [aotgrad.passes.EarlyUpdates(only_on=only_on)]}
    step = aotgrad.train_step(training.step, training.state, backend=compile_graph, options=options)
    for batch in batches(2):  # the first step is taken once, and is not compiled
        step(*batch)
    assert lengths == {1 if only_on == "cpu" else 4}
