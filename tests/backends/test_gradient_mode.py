"""Recurrent layers: their kernel saves a workspace, in the gradient mode only."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.backends.gradient_mode import is_workspace

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")

HALVES = ("eager", "inductor")
OPTIONS = ({}, {"partitioner": "recompute_all"}, {"memory_budget": 0.1})


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.LSTM(8, 16, num_layers=2, bidirectional=True)


def gradients(run, model):
    torch.manual_seed(1)
    x = torch.randn(5, 3, 8, requires_grad=True)
    return torch.autograd.grad(run(x)[0].square().sum(), [x, *model.parameters()])


def assert_equal(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "defaults")
@pytest.mark.parametrize("halves", HALVES)
def test_gradients_are_those_of_eagers_kernel(model, halves, options):
    compiled = aotgrad.aot_module(model, halves, options=options)
    assert_equal(gradients(compiled, model), gradients(model, model))


@pytest.mark.parametrize("halves", HALVES)
def test_a_layer_in_a_checkpoint(model, halves):
    run = lambda x: checkpoint(model, x, use_reentrant=False)  # noqa: E731
    compiled = aotgrad.aot_module(Checkpointed(model), halves)
    assert_equal(gradients(compiled, model), gradients(run, model))


class Checkpointed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


@pytest.mark.parametrize("halves", HALVES)
@torch._dynamo.config.patch(allow_rnn=True)
def test_behind_dynamo(model, halves):
    compiled = torch.compile(model, backend={"eager": "aotgrad_eager", "inductor": "aotgrad"}[halves], fullgraph=True)
    assert_equal(gradients(compiled, model), gradients(model, model))


@pytest.mark.parametrize("halves", HALVES)
def test_gradients_of_gradients(model, halves):
    def second_order(run):
        x = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
        (gradient,) = torch.autograd.grad(run(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), [x, *model.parameters()])

    torch.testing.assert_close(second_order(aotgrad.aot_module(model, halves)), second_order(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("halves", HALVES)
def test_a_training_step_keeps_the_gradients_of_biases_apart(halves):
    """The kernel returns one tensor for both biases of a layer."""
    model, x = nn.LSTM(4, 8), torch.randn(5, 2, 4)
    step = aotgrad.train_step(lambda x: model(x)[0].sum().backward(), [model], backend=halves)
    for wanted in (1, 2):
        step(x)
        first, second = model.bias_ih_l0.grad, model.bias_hh_l0.grad
        assert first.data_ptr() != second.data_ptr()
        model_gradients = torch.autograd.grad(model(x)[0].sum(), [*model.parameters()])
        torch.testing.assert_close([each.grad / wanted for each in model.parameters()], [*model_gradients])


def test_without_gradients_no_workspace_is_computed(model):
    with torch.no_grad():
        compiled = aotgrad.aot_module(model, "eager")
        assert_equal(compiled(torch.ones(5, 3, 8))[0], model(torch.ones(5, 3, 8))[0])
    (plan,) = compiled.plans()
    assert not any(map(is_workspace, plan.executable.partition.forward.module.graph.nodes))
