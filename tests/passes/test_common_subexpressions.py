"""Equal calls: which are merged, and that nobody can tell."""

from __future__ import annotations

import math

import pytest
import torch

import aotgrad
from aotgrad.graph.equality import argument_key
from aotgrad.passes import CommonSubexpressionElimination, DeadCodeElimination
from tests.executables import executable_of
from tests.numerics.against_eager import assert_like_eager, leaf, plain
from tests.passes.graphs import aten, inference_graph, names, tidied

PASSES = (CommonSubexpressionElimination(), DeadCodeElimination())


def merged(op, *pairs) -> bool:
    """Whether two calls of an op with the given arguments after `x` become one."""

    def build(graph, x):
        first, second = (graph.call_function(op, (x, *arguments)) for arguments in pairs)
        return graph.call_function(aten.mul.Tensor, (first, second))

    return len(names(tidied(inference_graph(build), *PASSES))) == 2


@pytest.mark.parametrize("pair", [(1, 1), (0.5, 0.5), (math.nan, math.nan)])
def test_equal_arguments(pair):
    assert merged(aten.add.Tensor, *((value,) for value in pair))


@pytest.mark.parametrize("pair", [(1, 1.0), (1, True), (0.0, -0.0), (1, 2)])
def test_numbers_that_only_look_equal(pair):
    assert not merged(aten.add.Tensor, *((value,) for value in pair))


@pytest.mark.parametrize("op", [aten.bernoulli.default, aten.empty_like.default, aten.rand_like.default])
def test_ops_that_give_something_else_each_time(op):
    assert not merged(op, (), ())


def test_arguments_are_compared_by_value():
    assert argument_key([1, (2, None)]) == argument_key((1, [2, None]))
    assert argument_key(slice(1, 2)) == argument_key(slice(1, 2)) != argument_key(slice(1, 3))
    assert argument_key({"a": 1, "b": 2}) == argument_key({"b": 2, "a": 1})
    assert argument_key(complex(0, -0.0)) != argument_key(complex(0, 0.0))
    assert argument_key(torch.float32) != argument_key(torch.float64)


def test_nodes_that_checkpointing_treats_differently_stay_apart():
    def build(graph, x):
        first, second = (graph.call_function(aten.sin.default, (x,)) for _ in range(2))
        second.meta["recompute"] = "must recompute"
        return graph.call_function(aten.mul.Tensor, (first, second))

    assert names(tidied(inference_graph(build), *PASSES)) == ["sin", "sin", "mul"]


def test_forward_and_backward_share_what_they_both_compute():
    joint = executable_of(lambda x: x.sin().sum() + (x.cos() * 2).sum(), "f32[3] requires_grad").joint
    assert names(joint).count("cos") == 1


def two_statistics(x):
    return torch.var_mean(x, 0), torch.var_mean(x, 0)


def test_outputs_of_equal_ops_with_several_results_are_different_tensors():
    def write(outputs, args):
        outputs[0][0].mul_(2)
        outputs[0][1].mul_(2)

    assert_like_eager(two_statistics, lambda: (plain(4, 3),), "eager", caller=write)


def test_an_output_that_the_caller_changes_is_no_saved_value():
    """`exp` is saved for the product, an equal one is returned: eager lets the caller change the latter."""

    def function(x):
        return x.exp().detach(), (x.exp() * x).sum()

    def write(outputs, args):
        outputs[0].mul_(2)

    for backend in ("eager", "dynamo"):
        assert_like_eager(function, lambda: (leaf(3),), backend, caller=write, gradients_close="the sum of two terms")


def test_gradients_are_different_tensors():
    function = lambda x, y: (x * 2 + y * 2).sum()  # noqa: E731
    joint = executable_of(function, "f32[3] requires_grad", "f32[3] requires_grad").joint
    (output,) = joint.module.graph.find_nodes(op="output")
    gradients = output.args[0][1:]
    assert len(set(gradients)) == 2
    assert_like_eager(function, lambda: (leaf(3), leaf(3)), "eager")


def test_symbolic_sizes_are_read_once():
    joint = executable_of(lambda x: x.view(-1).sin() + x.view(-1).sin(), "f32[4, 2]", dynamic=True).joint
    assert names(joint).count("sin") == names(joint).count("view") == 1


def test_sizes_that_depend_on_values_stay_apart():
    assert_like_eager(lambda x: x[:, None] * x.cumsum(0) + x.cumsum(0), lambda: (leaf(3),), "interpreter")


def count_twice(x):
    return (x > 0).nonzero().sum() * (x > 0).nonzero().float().sin().sum() * x


def select_twice(x):
    return x[x > 0].sum() * x[x > 0].sin().sum()


def read_twice(x):
    first, second = (x.detach().abs().sum().long().item() for _ in range(2))
    return x.sum() * torch.zeros(first).add(1).sum() * torch.zeros(second).add(2).sum()


def read_a_part_twice(x):
    first, second = (x.detach().abs().long().unbind()[0].item() for _ in range(2))
    return x.sum() * torch.zeros(first).add(1).sum() * torch.zeros(second).add(2).sum()


@pytest.mark.parametrize("way", ["aot", "dynamo"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("function", [count_twice, select_twice, read_twice, read_a_part_twice])
@torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
def test_sizes_of_equal_tensors(function, backend, way):
    name = "aotgrad" if backend == "inductor" else "aotgrad_eager"
    by_dynamo = torch.compile(function, backend=name, fullgraph=True)
    compiled = by_dynamo if way == "dynamo" else aotgrad.aot_function(function, backend)
    for _ in range(2):
        found, expected = (torch.tensor([1.5, -1, 2, 3], dtype=torch.float64, requires_grad=True) for _ in range(2))
        ours, eager = compiled(found), function(expected)
        torch.testing.assert_close(ours, eager)
        ours.sum().backward(), eager.sum().backward()
        torch.testing.assert_close(found.grad, expected.grad)
