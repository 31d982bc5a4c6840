"""The table of memory against time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.errors import PartitionError
from aotgrad.options import host_bytes_of


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


def wide(x, *weights):
    for w in weights:
        x = torch.tanh(x @ w) + x
    return x.sum()


@pytest.mark.parametrize("host", [True, "300KB"])
def test_three_choices_beside_two_and_a_bound(host):
    args = [torch.randn(192, 192, requires_grad=True) for _ in range(7)]
    alone = aotgrad.memory_frontier(wide, *args)
    frontier = aotgrad.memory_frontier(wide, *args, offload=host)
    saved = [point.saved_bytes for point in frontier.points]
    times = [point.recompute_bytes for point in frontier.points]
    assert saved == sorted(saved, reverse=True) and times == sorted(times) and len(saved) > 2
    for point in frontier.points:
        assert point.offloading.bound_bytes <= point.recompute_bytes + 1 <= point.offloading.alone_bytes + 1
        assert point.offloading.host_bytes <= host_bytes_of(host)
    assert frontier.points[0].saved_bytes < alone.points[0].saved_bytes
    assert frontier.default.peak_bytes < alone.default.peak_bytes
    assert alone.default.offloading is None
