"""Buffers that a step assigns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .comparing import Training, assert_trains_like_eager, batches, plain_step


class Averaging(nn.Module):
    """Averages what it sees, and keeps its last results."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", None)

    def forward(self, x):
        y = self.linear(x)
        self.mean = 0.9 * self.mean + 0.1 * y.mean(0).detach()
        self.calls = self.calls + 1
        with torch.no_grad():
            self.last = y * 2 if self.last is None else self.last + y
        return y - self.mean


class Exchanging(Averaging):
    """Two buffers are exchanged, and one becomes `None`."""

    def forward(self, x):
        self.calls, self.last = self.mean, None if self.last is not None else self.calls
        self.mean = self.mean + 1
        return self.linear(x) + self.calls


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("keep_gradients", [True, False])
@pytest.mark.parametrize("kind", [Averaging, Exchanging])
def test_a_step_assigns_buffers(kind, keep_gradients, backend):
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(kind(), nn.Tanh())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        return Training(plain_step(model, optimizer), [model, optimizer])

    assert_trains_like_eager(make, batches(5), backend, keep_gradients=keep_gradients)


def test_a_buffer_that_is_assigned_between_steps():
    def make():
        torch.manual_seed(0)
        model = nn.BatchNorm1d(4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            model(x).sum().backward()
            return model.running_mean * 2

        def between(k):
            model.running_mean = torch.full((4,), 10.0 * k)

        return Training(step, [model, optimizer], between)

    assert_trains_like_eager(make, batches(4))
