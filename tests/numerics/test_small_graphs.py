"""Functions that are too small to compile run eagerly."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import aotgrad
from aotgrad.backends.inductor.backend import InductorBackend
from aotgrad.pipeline import SmallGraph
from aotgrad.telemetry.observer import record_stages
from tests.numerics.against_eager import assert_like_eager, leaf, non_leaf, plain

ALONE = {"min_graph_ops": 100}


@pytest.fixture
def counted():
    """The counts of calls and plans since the start of the test."""
    before = Counter(aotgrad.counters)
    return lambda: {name: n - before[name] for name, n in aotgrad.counters.items() if n != before[name] and name != "graphs"}


def compiler_that_is_called(calls):
    def compile_graph(graph, inputs):
        calls.append(graph)
        return aotgrad.make_boxed_func(graph.forward)

    return compile_graph


def test_a_compiler_of_ones_own_gets_every_graph():
    calls = []
    aotgrad.aot_function(torch.sin, compiler_that_is_called(calls))(torch.ones(2))
    assert len(calls) == 1


@pytest.mark.parametrize(("limit", "compiled"), [(0, True), (2, True), (3, False)])
def test_the_option_says_from_how_many_ops_on(limit, compiled, counted):
    calls = []
    function = aotgrad.aot_function(
        lambda x: x.t().sin().view(-1).cos()[0], compiler_that_is_called(calls), options={"min_graph_ops": limit}
    )
    x = torch.randn(1, 2)
    for _ in range(2):
        assert torch.equal(function(x), x.t().sin().view(-1).cos()[0])
    assert len(calls) == compiled
    one = "compilations" if compiled else "small_graphs"
    assert counted() == {"misses": 1, one: 1, "hits": 1}
    (plan,) = function.plans()
    assert isinstance(plan.executable, SmallGraph) != compiled
    assert plan.hits == 1
    assert aotgrad.last_executed() is plan


def test_the_log_says_why(caplog):
    function = aotgrad.aot_function(torch.sin, aotgrad.nop, options=ALONE)
    with caplog.at_level(logging.DEBUG, logger="aotgrad.stages"), record_stages() as stages:
        function(torch.ones(2))
    reason = "# 1 op computes something, min_graph_ops is 100: the original function runs eagerly"
    assert [stage.name for stage in stages] == ["capture", "analysis", "small graph"]
    assert stages[-1].text == reason
    assert reason in caplog.text


def mutate_and_view(x, y):
    x.mul_(2)
    return x.t(), y[0], (x * y).sum()


@pytest.mark.parametrize("backend", ["nop", "dynamo"])
def test_everything_is_eagers(backend):
    assert_like_eager(mutate_and_view, lambda: (non_leaf(2, 2), leaf(2, 2)), backend, compilations=0, options=ALONE)


def test_arguments_that_overlap_are_no_matter():
    x = torch.ones(4)
    aotgrad.aot_function(lambda x, y: x.mul_(2) + y, aotgrad.nop, options=ALONE)(x[:3], x[1:])
    assert x.tolist() == [2, 2, 2, 1]


def test_a_function_that_grows_is_compiled(counted):
    def function(x):
        return x.sin().cos() if x.dim() == 2 else x.sin()

    compiled = aotgrad.aot_function(function, aotgrad.nop, options={"min_graph_ops": 2})
    compiled(torch.ones(2))
    compiled(torch.ones(2, 2))
    assert counted() == {"misses": 2, "small_graphs": 1, "compilations": 1}


class Multiplied(TorchFunctionMode):
    """The kinds of tensors that are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.mul:
            self.kinds.append(type(args[0]))
        return function(*args, **(kwargs or {}))


def test_values_are_those_of_the_call():
    """A plan that is not compiled runs the function on the arguments of each call, under the modes of that call."""
    compiled = aotgrad.aot_function(lambda x, scale: x * scale["by"], aotgrad.nop, options=ALONE)
    assert [compiled(torch.ones(1), {"by": by}).item() for by in (2, 3, 3)] == [2, 3, 3]
    with Multiplied() as multiplied:
        compiled(torch.ones(1), {"by": 3})
    assert multiplied.kinds == [torch.Tensor]


def test_gradients_of_gradients():
    x = torch.randn(3, requires_grad=True)
    compiled = aotgrad.aot_function(torch.sin, aotgrad.nop, options=ALONE)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    assert torch.equal(torch.autograd.grad(gradient.sum(), x)[0], -x.sin())


def test_a_small_second_derivative_of_a_compiled_function():
    x = torch.randn(3, requires_grad=True)
    compiled = aotgrad.aot_function(lambda x: (x.sin() * 2).cos(), aotgrad.nop, options={"min_graph_ops": 3})
    expected = torch.autograd.grad((x.sin() * 2).cos().sum(), x, create_graph=True)[0]
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, expected)


def test_modules(counted):
    module = nn.Linear(2, 1)
    compiled = aotgrad.aot_module(module, aotgrad.nop, options=ALONE)
    x = torch.randn(3, 2)
    assert torch.equal(compiled(x), module(x))
    flat = aotgrad.aot_module_simplified(FlatLinear(module), [x], aotgrad.nop, options=ALONE)
    (result,) = flat(x)
    assert torch.equal(result, module(x))
    assert counted()["small_graphs"] == 2


class FlatLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        return (self.linear(x),)


@pytest.mark.parametrize(("function", "alone"), [(torch.sin, True), (lambda x: x.sin().cos(), False)])
def test_inductor_leaves_lone_ops_alone(function, alone, counted):
    torch._dynamo.reset()
    x = torch.randn(4, requires_grad=True)
    result = torch.compile(function, backend="aotgrad")(x)
    torch.testing.assert_close(result, function(x))
    assert counted() == {"small_graphs" if alone else "compilations": 1}
    assert result.grad_fn.name() == ("SinBackward0" if alone else "SegmentBackward")


def test_the_debugging_backends_and_tuning_modes_compile_every_graph():
    limits = {name: aotgrad.backends.get(name).min_graph_ops for name in aotgrad.backends.names()}
    assert limits == {"eager": 0, "inductor": 2, "interpreter": 0}
    assert InductorBackend(mode="max-autotune").min_graph_ops == 0


def test_symbolic_sizes(counted):
    compiled = aotgrad.aot_function(torch.sin, aotgrad.nop, dynamic=True, options=ALONE)
    for size in (3, 4, 5):
        assert torch.equal(compiled(torch.ones(size)), torch.ones(size).sin())
    assert counted() == {"misses": 1, "small_graphs": 1, "hits": 2}


def test_plain_numbers_come_back():
    assert_like_eager(lambda x: (x * 2, 3, "text", None), lambda: (plain(2),), "nop", compilations=0, options=ALONE)
