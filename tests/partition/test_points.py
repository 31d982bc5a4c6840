"""The table of memory against time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.errors import PartitionError


def deep(x, w):
    for _ in range(5):
        x = torch.tanh(x @ w) + x
    return x.sum()


def arguments():
    return torch.randn(16, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_fewer_bytes_take_more_time(backend):
    frontier = aotgrad.memory_frontier(deep, *arguments(), backend=backend)
    saved = [point.saved_bytes for point in frontier.points]
    times = [point.recompute_bytes for point in frontier.points]
    assert len(frontier.points) > 2
    assert saved == sorted(saved, reverse=True) and times == sorted(times)
    assert saved[-1] < frontier.default.saved_bytes <= saved[0] and frontier.default.peak_bytes > 0


def test_a_module_and_how_it_prints():
    text = str(aotgrad.memory_frontier(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(4, 8)))
    header, default, *_ = text.splitlines()
    assert header.split() == ["saved", "peak", "traffic", "of", "recomputation", "of", "the", "most"]
    assert default.endswith("without a budget")


def test_nothing_runs():
    calls = []

    def fn(x):
        calls.append(type(x))
        return x.sin().sum()

    x = torch.randn(3, requires_grad=True)
    aotgrad.memory_frontier(fn, x)
    assert len(calls) == 1 and calls[0] is not torch.Tensor


def test_nothing_to_differentiate():
    with pytest.raises(PartitionError, match="no argument requires grad"):
        aotgrad.memory_frontier(deep, torch.ones(2, 2), torch.ones(2, 2))
