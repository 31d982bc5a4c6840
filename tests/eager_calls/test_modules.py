"""Modules that an island gets: what it changes of them, and what other threads see."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import aotgrad
from aotgrad.errors import CaptureError
from tests.eager_calls.functions import ISLANDS, gradients_of, leaf


class Noting(nn.Module):
    """Assigns attributes of itself and of a part."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls, self.gone = nn.Linear(3, 3), 0, 1
        self.linear.largest = 0.0
        self.seen = []

    def note(self, x):
        self.calls += 1
        self.linear.largest = float(x.detach().max())
        self.new = self.calls * 2
        if self.calls == 2:
            del self.gone
        return self.linear(x)

    def forward(self, x):
        return self.note(x.sin()).cos()


class NotingInAnIsland(Noting):
    note = aotgrad.island(Noting.note)


def test_attributes_are_assigned_once_a_call():
    found = []
    for kind in (Noting, NotingInAnIsland):
        torch.manual_seed(0)
        model = kind()
        run = model if kind is Noting else aotgrad.aot_module(model, "eager", options=ISLANDS)
        for count in (1, 2):
            run(leaf())
            found.append((count, model.calls, model.linear.largest, model.new, hasattr(model, "gone")))
    assert found[:2] == found[2:]


class Replacing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    @aotgrad.island
    def forward(self, x):
        self.mean = x.detach().mean(0)
        return x * 2


def test_a_buffer_that_is_replaced_is_an_error():
    model = Replacing()
    with pytest.raises(CaptureError, match="assigns or deletes a parameter, buffer or part of a Replacing"):
        aotgrad.aot_module(model, "eager", options=ISLANDS)(leaf())
    assert not model.mean.any()


class Assigning(nn.Module):
    """A function that closes over it assigns a buffer and a parameter."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.scale = nn.Parameter(torch.ones(3), requires_grad=False)

    def count(self, x):
        self.calls = self.calls + 1
        self.scale = nn.Parameter(self.scale * 2, requires_grad=False)
        return x * float(self.calls) + self.scale


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_module_that_is_closed_over_is_assigned_to_once_a_call(backend):
    models = Assigning(), Assigning()
    functions = [counting_on(model) for model in models]
    run = aotgrad.aot_function(functions[1], backend, options=ISLANDS)
    for seed in range(3):
        expected, found = (gradients_of(call, leaf(seed=seed)) for call in (functions[0], run))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(models[1].state_dict(), models[0].state_dict())


def counting_on(model):
    count = aotgrad.island(lambda x: model.count(x))
    return lambda x: count(x.cos()) * 2


class Holding(nn.Module):
    """Parameters in other places than registries: flat weights of a recurrent network, a parametrization, a bound method."""

    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(3, 3)
        self.normed = parametrizations.weight_norm(nn.Linear(3, 3))
        self.listed = [self.normed]
        self.normed.forward = self.normed.forward

    def inside(self, x):
        return self.listed[0](self.recurrent(x)[0])

    def forward(self, x):
        return self.inside(x.sin()).cos()


class HoldingInAnIsland(Holding):
    inside = aotgrad.island(Holding.inside)


def test_parameters_are_found_in_other_places():
    found = []
    for kind in (Holding, HoldingInAnIsland):
        torch.manual_seed(0)
        model, x = kind(), leaf()
        run = model if kind is Holding else aotgrad.aot_module(model, "eager", options=ISLANDS)
        found.append(torch.autograd.grad(run(x).sum(), [x, *model.parameters()]))
    torch.testing.assert_close(*found)


class Meeting(nn.Module):
    """Two threads are in its island at a time; each notes which tensors the real module has then."""

    def __init__(self, barrier):
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.barrier, self.waits = [barrier], [False]

    def meet(self, x):
        if self.waits[0]:
            self.barrier[0].wait()
        result = x * self.scale
        if self.waits[0]:
            self.barrier[0].wait()
        return result

    def forward(self, x):
        return self.meet(x.sin()).cos()


class MeetingInAnIsland(Meeting):
    meet = aotgrad.island(Meeting.meet)


def test_two_threads_run_an_island_of_one_module():
    barrier = threading.Barrier(3, timeout=60)
    model = MeetingInAnIsland(barrier)
    scale, run, found = model.scale, aotgrad.aot_module(model, "eager", options=ISLANDS), {}
    run(leaf()).sum().backward()
    model.scale.grad = None
    model.waits[0] = True

    def call(seed):
        x = leaf(seed=seed)
        found[seed] = torch.autograd.grad(run(x).sum(), [x, scale])

    threads = [threading.Thread(target=call, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    barrier.wait()  # both are inside
    is_untouched = model.scale is scale
    barrier.wait()
    for thread in threads:
        thread.join()
    assert is_untouched and model.scale is scale
    for seed in (1, 2):
        x = leaf(seed=seed)
        torch.testing.assert_close(found[seed], torch.autograd.grad((x.sin() * scale).cos().sum(), [x, scale]))
