"""A module's parameters and buffers as arguments."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.errors import CaptureError
from aotgrad.lifting import LiftedModule


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.second(self.first(x))


def test_each_tensor_is_lifted_once_under_its_first_name():
    assert list(LiftedModule(Tied()).tensors()) == ["first.weight", "first.bias", "second.bias", "calls"]


def test_forward_uses_the_given_tensors():
    module = Tied()
    lifted = LiftedModule(module)
    replaced = {name: torch.zeros_like(tensor) for name, tensor in lifted.tensors().items()}
    assert torch.equal(lifted.forward(replaced, torch.ones(1, 2)), torch.zeros(1, 2))
    assert (replaced["calls"], module.calls) == (1, 0)


def test_tied_parameters_get_the_gradient_of_both_uses():
    module = Tied()
    reference = copy.deepcopy(module)
    x = torch.randn(3, 2)
    aotgrad.aot_module(module, aotgrad.nop)(x).sum().backward()
    reference(x).sum().backward()
    for one, other in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    assert module.calls == 1


def test_a_training_flag_changes_the_state_key():
    module = nn.Sequential(nn.Dropout(0.5))
    before = LiftedModule(module).state_key()
    module.eval()
    assert LiftedModule(module).state_key() != before
    module.train()
    assert LiftedModule(module).state_key() == before


def test_train_and_eval_have_plans_of_their_own():
    module = aotgrad.aot_module(nn.Dropout(1.0), aotgrad.nop)
    x = torch.ones(2)
    assert module(x).sum() == 0
    assert module.eval()(x).sum() == 2
    assert module.train()(x).sum() == 0
    assert len(module.plans()) == 2


def test_a_parameter_that_is_assigned_anew_is_refused():
    class Assigning(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count = self.count + 1
            return x

    module = Assigning()
    with pytest.raises(CaptureError, match=r"assigns a new tensor to 'count'.*self.count.copy_\(...\)"):
        aotgrad.aot_module(module, aotgrad.nop)(torch.ones(1))
    assert module.count == 0
