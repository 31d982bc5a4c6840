"""What users do between two steps, and how many plans that makes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import aotgrad
from tests.training_step.comparing import (
    Training,
    assert_same,
    assert_trains_like_eager,
    batches,
    build,
    contents,
    plain_step,
    run,
)


def training(between=lambda k, found: None, make=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)) -> Training:
    """A model with dropout and an unused parameter; `between` gets the number of the step and its `Training`."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    model.unused = nn.Parameter(torch.ones(3))
    optimizer = make(model)

    found = Training(plain_step(model, optimizer), [model, optimizer])
    return Training(found.step, found.state, lambda k: between(k, found))


def toggle_training(k, found):
    found.state[0].train(k % 2 == 1)


def toggle_frozen(k, found):
    found.state[0][0].requires_grad_(k % 2 == 1)


def load_other_state(k, found):
    model, optimizer = found.state
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def add_group(k, found):
    if k == 1:
        found.state[1].add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.5})


def convert(k, found):
    if k == 1:
        found.state[0].double()
        found.state[1].state.clear()


def clear_gradients(k, found):
    found.state[0].zero_grad()


CHANGES = {
    toggle_training: 3,
    toggle_frozen: 3,
    load_other_state: 2,
    add_group: 3,
    clear_gradients: 2,
}
"""Changes between steps, and the plans of six steps: lazy state, all state, and what else differs."""


@pytest.mark.parametrize("between", CHANGES, ids=lambda change: change.__name__)
def test_a_change_between_steps(between):
    assert_trains_like_eager(lambda: training(between), batches(6), plans=CHANGES[between])


def test_another_dtype():
    data = batches(4)
    data = [(x.double(), y.double()) if k > 1 else (x, y) for k, (x, y) in enumerate(data)]
    assert_trains_like_eager(lambda: training(convert), data, plans=4)


def test_other_sizes_and_python_values_of_a_batch():
    def make():
        found = training()
        model, optimizer = found.state

        def step(x, y, *, scale):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x) * scale, y)
            loss.backward()
            optimizer.step()
            return loss

        return Training(lambda x, y: step(x, y, scale=len(x)), found.state)

    assert_trains_like_eager(make, [*batches(3), *batches(2, rows=5)], plans=3)


def test_a_step_without_grad_mode_is_eagers_error():
    found = build(training)
    step = aotgrad.train_step(found.step, found.state, backend="eager")
    with torch.no_grad(), pytest.raises(RuntimeError, match="does not require grad"):
        step(*batches(1)[0])
    step(*batches(1)[0])
    assert len(step.plans()) == 1


def test_an_error_in_the_middle_leaves_what_eager_leaves():
    def make():
        found = training()
        model, optimizer = found.state

        def step(x, y, fails=False):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            if fails:
                raise KeyError("the user's own")
            optimizer.step()

        return Training(step, found.state)

    eager, compiled = build(make), build(make)
    step = aotgrad.train_step(compiled.step, compiled.state, backend="eager")
    for k, batch in enumerate(batches(4)):
        for each in (eager.step, step):
            if k % 2:
                with pytest.raises(KeyError, match="the user's own"):
                    run(each, *batch, True)
            else:
                run(each, *batch)
        assert_same(contents(eager.state), contents(compiled.state), True)


def test_state_that_is_saved_and_copied_between_steps():
    found = build(training)
    step = aotgrad.train_step(found.step, found.state, backend="eager")
    step(*batches(1)[0])
    model, optimizer = found.state
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    other = copy.deepcopy(model)
    assert type(other[0].weight) is nn.Parameter and torch.equal(other[0].weight, model[0].weight)
    first = run(step, *batches(2)[1])
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert torch.equal(run(step, *batches(2)[1]), first) and len(step.plans()) == 2
