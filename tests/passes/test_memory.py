"""Whose memory a value is in, and what may take its place."""

from __future__ import annotations

import operator

import pytest

from aotgrad.passes.memory import MemoryOwnership
from tests.executables import executable_of, node_named, results_of
from tests.passes.graphs import aten, inference_graph


def test_an_item_of_a_fresh_tuple_is_fresh():
    def build(graph, x):
        return graph.call_function(operator.getitem, (graph.call_function(aten.var_mean.correction, (x,)), 0))

    joint = inference_graph(build)
    nodes = list(joint.module.graph.nodes)
    _, pair, item, _ = nodes
    assert MemoryOwnership.of(joint).fixed == {pair, item}, "an item is returned: the op must not be merged"


def copy_and_result(x, y):
    a = x.exp()
    return a.sin() * y, a.cos()


@pytest.mark.parametrize(
    ("specs", "held"),
    [
        (["f32[3] requires_grad", "f32[3]"], ["cos", "mul", "primals_1", "primals_2"]),
        (["f32[3]", "f32[3]"], []),
    ],
)
def test_the_caller_holds_inputs_and_outputs_until_the_backward_has_run(specs, held):
    joint = executable_of(copy_and_result, *specs).joint
    assert sorted(node.name for node in MemoryOwnership.of(joint).held) == held


def test_the_halves_know_what_the_caller_holds_too():
    partition = executable_of(copy_and_result, "f32[3] requires_grad", "f32[3]").partition
    assert {"primals_1", "primals_2"} <= {node.name for node in MemoryOwnership.of(partition.forward).held}
    assert MemoryOwnership.of(partition.backward).held == frozenset()


def test_what_may_take_the_place_of_what():
    joint = executable_of(copy_and_result, "f32[3] requires_grad", "f32[3]").joint
    memory = MemoryOwnership.of(joint)
    exp, sin, x = (node_named(joint, name) for name in ("exp", "sin", "primals_1"))
    result = results_of(joint)[0]
    assert memory.may_replace(sin, exp)
    assert not memory.may_replace(sin, x), "the caller may change an input before the backward runs"
    assert not memory.may_replace(sin, result), "and an output"
    assert not memory.may_replace(result, exp), "an output stays in memory of its own"
    assert memory.may_replace(result, result)


def test_what_is_read_by_position_is_replaced_by_a_fresh_tensor_only():
    def build(graph, x):
        fresh = graph.call_function(aten.exp.default, (x,))
        copy = graph.call_function(aten.clone.default, (fresh,))
        return graph.call_function(aten.sin.default, (graph.call_function(aten.as_strided.default, (copy, [2], [1], 1)),))

    joint = inference_graph(build)
    memory = MemoryOwnership.of(joint)
    x, fresh, copy, *_ = joint.module.graph.nodes
    assert memory.may_replace(copy, fresh)
    assert not memory.may_replace(copy, x), "an input may start anywhere in its storage"
