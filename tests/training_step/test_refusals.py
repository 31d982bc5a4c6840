"""What a plan would not repeat is an error that says what to do, and leaves the state as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad import pipeline
from aotgrad.errors import CaptureError
from tests.training_step.comparing import Training, assert_same, assert_trains_like_eager, batches, contents

UNLISTED = nn.Linear(4, 2)
COUNT = torch.zeros(())


def unlisted_module(model, optimizer, x, y):
    (UNLISTED(x) + model(x)).sum().backward()


def unlisted_optimizer(model, optimizer, x, y):
    model(x).sum().backward()
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    other.step()


def unlisted_tensor(model, optimizer, x, y):
    COUNT.add_(1)


def scheduler_inside(model, optimizer, x, y):
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5)
    scheduler.step()


def assigned_hyperparameter(model, optimizer, x, y):
    optimizer.param_groups[0]["lr"] *= 0.5


def added_group(model, optimizer, x, y):
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def removed_entries(model, optimizer, x, y):
    optimizer.state[model.weight].clear()


def hook_inside(model, optimizer, x, y):
    model.weight.register_hook(lambda gradient: gradient * 2)
    model(x).sum().backward()


def gradient_of_an_argument(model, optimizer, x, y):
    model(x.requires_grad_()).sum().backward()


def sparse_gradient(model, optimizer, x, y):
    optimizer.zero_grad()
    embedding = nn.functional.embedding(torch.tensor([0, 1]), model.weight, sparse=True)
    embedding.sum().backward()


SCALER = torch.amp.GradScaler("cpu")


def scaler_inside(model, optimizer, x, y):
    SCALER.scale(model(x).sum()).backward()
    SCALER.step(optimizer)
    SCALER.update()


def kept_tensor(model, optimizer, x, y):
    model.last = model(x)  # with its history


REFUSED = {
    unlisted_module: "backward\\(\\) gives 'UNLISTED.weight' a gradient, which is not listed in `state`; list it",
    unlisted_optimizer: "a SGD takes a step and is not listed in `state`, at .*other.step\\(\\); list it there",
    unlisted_tensor: "a tensor that is not listed in `state` is changed in place, at .*COUNT.add_\\(1\\); list it",
    scheduler_inside: "a LambdaLR takes a step inside, at .*; call scheduler.step\\(\\) after the step",
    assigned_hyperparameter: "'lr' of parameter group 0 is assigned inside; assign hyperparameters between steps",
    added_group: "'params' of parameter group 1 is assigned inside",
    removed_entries: "entries of an optimizer's state are removed inside",
    hook_inside: "a hook of a tensor of `state` is registered inside, at .*; register it once, before the step",
    gradient_of_an_argument: "backward\\(\\) gives an argument a gradient; list the tensor",
    sparse_gradient: "a gradient is sparse.*; use dense gradients",
    scaler_inside: "a GradScaler is used by scale\\(\\) and is not listed in `state`, at .*; list it there",
    kept_tensor: "'last' is assigned a tensor that requires grad; assign its detach\\(\\)",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_an_error_that_says_what_to_do(function):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    before = contents([model, optimizer, UNLISTED, COUNT])
    step = aotgrad.train_step(lambda x, y: function(model, optimizer, x, y), [model, optimizer], backend="eager")
    with pytest.raises(CaptureError, match=REFUSED[function]):
        step(*batches(1)[0])
    assert_same(before, contents([model, optimizer, UNLISTED, COUNT]), True)
    assert type(model.weight) is nn.Parameter and not model.weight._backward_hooks


def test_a_scaler_that_is_not_enabled_is_no_obstacle():
    model, scaler = nn.Linear(4, 2), torch.amp.GradScaler("cpu", enabled=False)
    step = aotgrad.train_step(lambda x: scaler.scale(model(x).sum()).backward(), [model], backend="eager")
    step(torch.ones(4))
    assert torch.equal(model.weight.grad, torch.ones(2, 4))


def test_a_parameter_with_a_live_graph_in_cpp_is_still_usable():
    model = nn.Linear(4, 2)
    loss = model(torch.ones(4)).sum()
    step = aotgrad.train_step(lambda: model.weight.sum(), [model], backend="eager")
    step()
    loss.backward()
    assert torch.equal(model.weight.grad, torch.ones(2, 4))


def refuse_symbolic_numbers(graph):
    if any("zuf" in str(node.meta.get("val")) for node in graph.nodes):
        raise NotImplementedError("no symbolic numbers")


def conditional_step():
    """A step whose update depends on the loss."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if loss < 100.0:
            optimizer.step()

    return Training(step, [model, optimizer])


@pytest.mark.parametrize("where", ["the backend", "a pass of this package"])
def test_what_fails_on_symbolic_numbers_is_named(monkeypatch, where):
    """The step is compiled all the same, with its numbers as constants."""

    def compile_graph(graph, inputs):
        refuse_symbolic_numbers(graph.graph)
        return graph

    def share_equal_numbers(joint, require_equal):
        refuse_symbolic_numbers(joint.module.graph)
        return {}

    if where != "the backend":
        monkeypatch.setattr(pipeline, "share_equal_numbers", share_equal_numbers)
    with pytest.warns(UserWarning, match="each change of a number makes a new plan: .* NotImplementedError: no symbolic"):
        assert_trains_like_eager(conditional_step, batches(1), compile_graph if where == "the backend" else "eager")
