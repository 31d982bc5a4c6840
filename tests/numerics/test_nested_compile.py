"""A result of `torch.compile`, called inside a function or module that aotgrad traces itself, is a part of its graph."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import aotgrad

from .against_eager import compiled as aot
from .against_eager import leaf

BACKENDS = ("nop", "aot_inductor")


def scaled_sine(x):
    return x.sin() * x


@pytest.mark.parametrize("compiled_before", [False, True])
@pytest.mark.parametrize("inner", ["eager", "inductor", "aotgrad_eager", "aotgrad"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_function(backend: str, inner: str, compiled_before: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(scaled_sine, backend=inner)
    if compiled_before:
        compiled(leaf(3))
    results = []
    for function in (aot(lambda x: compiled(x * 2) * 3, backend), lambda x: scaled_sine(x * 2) * 3):
        torch.manual_seed(0)
        x = leaf(3)
        y = function(x)
        results.append((y, *torch.autograd.grad(y.sum(), x)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("inner", ["eager", "aotgrad_eager"])
def test_a_compiled_layer(inner: str) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    expected = copy.deepcopy(model)
    model[0].compile(backend=inner)
    model[2] = torch.compile(model[2], backend=inner)
    x = torch.randn(5, 3)
    aotgrad.aot_module(model, aotgrad.nop)(x).square().sum().backward()
    expected(x).square().sum().backward()
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)


def test_a_compiled_function_runs_compiled_afterwards() -> None:
    torch._dynamo.reset()
    graphs = []
    compiled = torch.compile(scaled_sine, backend=lambda graph, inputs: graphs.append(graph) or graph)
    aotgrad.aot_function(compiled_inside := lambda x: compiled(x) * 3, aotgrad.nop)(leaf(3))
    assert not graphs
    torch.testing.assert_close(compiled(x := leaf(3)) * 3, compiled_inside(x))
    assert len(graphs) == 1
