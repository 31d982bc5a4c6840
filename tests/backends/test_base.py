"""Backends made of functions: boxing, arity, roles and bad results."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from aotgrad.backends.base import boxed, checked_arity, make_boxed_compiler, make_boxed_func
from aotgrad.errors import BackendError


def test_a_boxed_function_takes_a_list_and_clears_it():
    args = [1, 2]
    assert make_boxed_func(lambda a, b: (a + b,))(args) == (3,)
    assert args == []


def test_what_is_boxed_stays_as_it_is():
    function = make_boxed_func(lambda a: (a,))
    assert boxed(function) is function
    assert boxed(lambda a: (a,)) is not function


def test_a_boxed_compiler_returns_boxed_functions():
    compiled = make_boxed_compiler(lambda module, inputs: lambda x: (x,))(None, [])
    assert compiled([5]) == (5,)


def test_a_lone_value_counts_as_one():
    assert checked_arity(lambda args: 5, 1, "b", "forward")([]) == (5,)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ((1, 2), "backend 'b' returned 2 values from the forward graph, which has 1 outputs"),
        ((), "backend 'b' returned 0 values from the forward graph, which has 1 outputs"),
    ],
)
def test_a_wrong_number_of_results_names_the_backend_and_both_numbers(results, message):
    with pytest.raises(BackendError, match=message):
        checked_arity(lambda args: results, 1, "b", "forward")([])


def roles(x: torch.Tensor) -> list[str]:
    """Which compilers a call and its backward use."""
    used = []

    def compiler(name):
        return lambda module, inputs: used.append(name) or aotgrad.nop(module, inputs)

    function = aotgrad.aot_function(
        torch.sin, compiler("forward"), compiler("backward"), inference_compiler=compiler("inference")
    )
    result = function(x)
    if result.requires_grad:
        result.sum().backward()
    return used


def test_each_graph_goes_to_its_compiler():
    assert roles(torch.ones(2, requires_grad=True)) == ["forward", "backward"]
    assert roles(torch.ones(2)) == ["inference"]


def test_one_compiler_serves_every_graph():
    compiled = []

    def compiler(module, inputs):
        compiled.append([type(value).__name__ for value in inputs])
        return module.forward

    x = torch.ones(2, requires_grad=True)
    aotgrad.aot_function(torch.sin, compiler)(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert [len(inputs) for inputs in compiled] == [1, 2]
    assert all(name == "FakeTensor" for inputs in compiled for name in inputs)


def test_a_backward_compiler_that_returns_no_callable_is_named():
    function = aotgrad.aot_function(torch.sin, aotgrad.nop, lambda module, inputs: None)
    result = function(torch.ones(2, requires_grad=True))
    with pytest.raises(BackendError, match="backend 'user' returned a NoneType for the backward graph"):
        result.sum().backward()


def test_a_backend_may_change_the_graph_that_it_gets():
    """Inductor turns views into reshapes, except if its own cache has the graph. What the plan knows stays."""

    def backend(module, inputs):
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
            node.target = torch.ops.aten.reshape.default
        return module.forward

    x = torch.ones(3, requires_grad=True)
    ours = aotgrad.aot_function(lambda x: (h := x.exp(), h.view(-1, 1) * 2, h.view(-1, 1))[1:], backend)
    ours(x)
    (plan,) = ours.plans()
    text = str(plan.executable.partition.forward.module.graph)
    assert "aten.view" in text and "aten.reshape" not in text and plan.executable.results_of_saved
