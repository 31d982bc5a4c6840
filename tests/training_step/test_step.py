"""A step as one graph, beside the same step in eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.errors import CaptureError
from tests.training_step.comparing import Training, assert_trains_like_eager, batches, build, plain_step

both = pytest.mark.parametrize("backend", ["eager", "inductor"])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def training(model: nn.Module, optimizer: torch.optim.Optimizer, **more) -> Training:
    once = plain_step(model, optimizer, max_norm=1.0)
    return Training(lambda x, y: {"loss": once(x, y), "rows": len(x)}, [model, optimizer], **more)


def with_adamw() -> Training:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    return training(model, optimizer, between=lambda k: scheduler.step())


@both
def test_an_ordinary_step(backend):
    assert_trains_like_eager(with_adamw, batches(4), backend, plans=2)


def test_as_a_decorator():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @aotgrad.train_step(state=[model, optimizer], keep_gradients=False, backend="eager")
    def step(x):
        """A step of the optimizer."""
        model(x).sum().backward()
        optimizer.step()

    before = model.weight.detach().clone()
    step(torch.ones(1, 2))
    torch.testing.assert_close(model.weight, before - 0.1)
    assert (step.__doc__, len(step.plans()), model.weight.grad) == ("A step of the optimizer.", 1, None)


def test_a_schedule_makes_no_plan():
    assert_trains_like_eager(with_adamw, batches(200), plans=2)


def test_hyperparameters_that_are_assigned_between_steps():
    def make():
        found = with_adamw()
        (group,) = found.state[1].param_groups

        def between(k):
            group["lr"] = (0.1, 0.0, 1e-300)[k % 3]
            group["betas"] = (0.5 + k / 100, 0.9)
            group["weight_decay"] = 0.1 * (k + 1)

        return Training(found.step, found.state, between)

    assert_trains_like_eager(make, batches(8), plans=2)


def test_random_numbers_are_eagers():
    def make():
        model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 2))
        return training(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    assert_trains_like_eager(make, batches(4), plans=2)


def test_the_graph_has_no_backward_and_writes_the_state():
    step = assert_trains_like_eager(with_adamw, batches(3))
    for plan in step.plans():
        assert plan.executable.partition.backward is None
        written = plan.executable.joint.mutated_inputs
        assert written and written == plan.executable.joint.writable_inputs


def test_a_returned_parameter_is_the_parameter():
    model = nn.Linear(4, 2)
    step = aotgrad.train_step(lambda x: (model.weight, x, model.weight.t()), [model], backend="eager")
    x = torch.ones(1)
    weight, same, view = step(x)
    assert weight is model.weight and same is x and torch.equal(view, weight.t())


def test_a_returned_tensor_has_no_history():
    found = build(with_adamw)
    step = aotgrad.train_step(found.step, found.state, backend="eager")
    assert not step(*batches(1)[0])["loss"].requires_grad


def test_a_step_keeps_its_name():
    def name(x):
        """Text."""

    step = aotgrad.train_step(name, [nn.Linear(1, 1)])
    assert (step.__name__, step.__doc__) == ("name", "Text.")


def test_tensors_of_the_users_own_are_state():
    def make():
        weight, count = torch.randn(4, 2).requires_grad_(), torch.zeros(())
        optimizer = torch.optim.SGD([weight], lr=0.1)

        def step(x, y):
            count.add_(1)
            loss = (x @ weight - y).pow(2).mean() * count
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return Training(step, [{"weight": weight, "more": [count]}, optimizer])

    assert_trains_like_eager(make, batches(3), plans=2)


def test_a_parameter_that_is_passed_is_the_one_of_the_state():
    model = nn.Linear(4, 2)

    def step(weight):
        return weight is model.weight

    assert aotgrad.train_step(step, [model], backend="eager")(model.weight)


@pytest.mark.parametrize("kind", ["LBFGS", "SparseAdam"])
def test_an_optimizer_that_is_refused_by_name(kind):
    model = nn.Linear(1, 1)
    with pytest.raises(CaptureError, match=f"train_step: {kind} .* Use another optimizer"):
        aotgrad.train_step(lambda: None, [model, getattr(torch.optim, kind)(model.parameters())])


def test_a_state_of_another_kind_is_refused():
    with pytest.raises(CaptureError, match="`state` is of type int; modules, optimizers, gradient scalers"):
        aotgrad.train_step(lambda: None, [3])


def test_an_unknown_backend_or_option_is_refused_at_once():
    with pytest.raises(aotgrad.errors.BackendError):
        aotgrad.train_step(lambda: None, [], backend="none")
    with pytest.raises(aotgrad.errors.OptionError):
        aotgrad.train_step(lambda: None, [], options={"none": 1})
