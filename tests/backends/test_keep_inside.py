"""Kept calls that the function itself differentiates: in a training step, and by `torch.autograd.grad`."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint

import aotgrad
from tests.backends.test_keep import Block, Keeping, assert_like_eager, tensors

BLOCK = ["layer_norm", "linear", "scaled_dot_product_attention", "linear"]
GRADIENTS = ["layer_norm_backward", "linear_backward", "linear_backward", "scaled_dot_product_attention_backward"]


# --- Training steps --------------------------------------------------------------------------------------------------


def trained(make_model, backend=None, run=lambda model, x: model(x), **settings):
    """Losses and parameters of some steps, in eager or compiled."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        loss = run(model, x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    taken = step if backend is None else aotgrad.train_step(step, [model, optimizer], backend=backend, **settings)
    torch.manual_seed(1)
    losses = [taken(x) for x in torch.randn(3, 2, 5, 8)]
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def assert_trains_like_eager(make_model, backend, **settings):
    eager = trained(make_model, run=settings.get("run", lambda model, x: model(x)))
    torch.testing.assert_close(trained(make_model, backend, **settings), eager)


SETTINGS = {"": {}, "gradients_freed": {"keep_gradients": False}, "budget": {"options": {"memory_budget": 0.0}}}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_has_one_node_for_each_call_and_its_gradients(name):
    backend = Keeping()
    assert_trains_like_eager(Block, backend, **SETTINGS[name])
    kept = backend.kept("step")
    gradients = [each for each in kept if each.endswith("_backward")]
    assert sorted(gradients) == GRADIENTS and kept[:4] == BLOCK
    assert (len(kept) > 8) == (name == "budget")


def test_a_step_recomputes_whole_calls_of_a_checkpoint():
    backend = Keeping()
    run = lambda model, x: checkpoint(model[1], model[0](x), use_reentrant=False)  # noqa: E731
    assert_trains_like_eager(lambda: nn.Sequential(Block(), Block()), backend, run=run)
    kept = backend.kept("step")
    assert sorted(each for each in kept if each.endswith("_backward")) == sorted(2 * GRADIENTS)
    assert kept.count("linear") > 4 and "mm" not in "".join(map(str, backend.graphs[-1][1].graph.nodes))


def test_two_backwards_of_a_step():
    model, backend = nn.Linear(4, 4), Keeping()
    plain = nn.Linear(4, 4)
    plain.load_state_dict(model.state_dict())

    def step(model, x):
        for part in x:
            model(part).sin().sum().backward()
        return model.weight.grad.sum()

    x = torch.randn(2, 3, 4)
    compiled = aotgrad.train_step(lambda x: step(model, x), [model], backend=backend)
    torch.testing.assert_close(compiled(x), step(plain, x))
    torch.testing.assert_close([each.grad for each in model.parameters()], [each.grad for each in plain.parameters()])
    assert backend.kept("step") == ["linear", "linear_backward"] * 2


# --- torch.autograd.grad ---------------------------------------------------------------------------------------------


def of_both(x, w):
    return grad(F.linear(x, w).sin().sum(), (x, w))


def of_one_argument(x, w):
    return grad(F.linear(x, w).sin().sum(), w)


def through_layer_norm(x, w):
    return grad(F.layer_norm(x, (4,), w[0], eps=0.1).sin().sum(), (x, w))


def twice(x, w):
    y = F.linear(x, w).sin()
    return *grad(y.sum(), x, retain_graph=True), *grad(y.square().sum(), w)


def from_the_result(x, w):
    y = F.linear(x, w)
    return grad(y, x, y)


def then_another_call(x, w):
    (g,) = grad(F.linear(x, w).sin().sum(), w)
    return F.linear(x, w - 0.1 * g).cos()


def of_a_gradient(x, w):
    (g,) = grad(F.linear(x, w).sin().sum(), w)
    return F.linear(w, g).cos()


def beside_the_result(x, w):
    y = F.linear(x, w).sin()
    return y * grad(y.sum(), x, retain_graph=True)[0].sum()


INSIDE = {
    of_both: {"inference": ["linear", "linear_backward"]},
    of_one_argument: {"inference": ["linear", "linear_backward"]},
    through_layer_norm: {"inference": ["layer_norm", "layer_norm_backward"]},
    twice: {"inference": ["linear", "linear_backward", "linear_backward"]},
    from_the_result: {"inference": ["linear", "linear_backward"]},
    then_another_call: {"forward": ["linear", "linear_backward", "linear"], "backward": ["linear_backward"]},
    of_a_gradient: {"forward": ["linear", "linear_backward", "linear"], "backward": ["linear_backward"]},
    beside_the_result: {"forward": ["linear", "linear_backward"], "backward": ["linear_backward"]},
}


def compared(function, order=1, **options):
    backend = Keeping()
    assert_like_eager(function, backend, tensors((3, 4), (5, 4)), order, **options)
    return {role: backend.kept(role) for role in dict.fromkeys(role for role, _ in backend.graphs)}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", INSIDE, ids=lambda each: each.__name__)
def test_a_gradient_inside_is_one_node(function, dynamic):
    assert compared(function, dynamic=dynamic) == INSIDE[function]


@pytest.mark.parametrize("function", [then_another_call, beside_the_result], ids=lambda each: each.__name__)
def test_gradients_of_what_has_gradients_inside(function):
    compared(function, order=2)


def of_a_penalty(x, w):
    y = F.linear(x, w).sin().sum()
    gx, gw = grad(y, (x, w), create_graph=True)
    return y + gx.square().sum() + gw.sin().sum()


def of_a_step_that_is_differentiated(x, w):
    (g,) = grad(F.linear(x, w).sin().sum(), w, create_graph=True)
    return F.linear(x, w - 0.1 * g).cos()


def of_a_norm(x, w):
    (g,) = grad(F.layer_norm(x, (4,), w[0]).sin().sum(), x, create_graph=True)
    return g.square()


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("function", [of_a_penalty, of_a_step_that_is_differentiated, of_a_norm], ids=lambda f: f.__name__)
def test_a_gradient_that_is_differentiated_takes_its_call_apart(function, order, caplog):
    caplog.set_level(logging.DEBUG, "aotgrad.backends.kept")
    roles = compared(function, order, tolerance=1e-4)
    assert not {"linear_backward", "layer_norm_backward"}.intersection(roles["forward"])
    assert " is taken apart: " in caplog.text


def test_a_gradient_that_starts_from_an_argument_takes_its_call_apart():
    def function(x, w):
        return grad(F.linear(x, w), w, x)

    backend = Keeping()
    assert_like_eager(function, backend, tensors((4, 4), (4, 4)))
    assert backend.kept("inference") == []
