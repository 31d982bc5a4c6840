"""How an autograd graph is cut into segments: the algorithms on plain graphs, and the engine's own order."""

from __future__ import annotations

import pytest
import torch

from aotgrad import torch_compat
from aotgrad.joint.segments import (
    dependence,
    engine_order,
    find_segments,
    levels,
    numbered,
    order_for_engine,
    topological_order,
)
from aotgrad.slots import Primal, UserOutput

HEADS = {"cos": ["tanh"], "sin": ["tanh"], "tanh": ["mul"], "mul": []}
"""Two heads on a trunk: each node with those that get gradients from it."""


def test_topological_order_takes_the_lowest_priority_of_what_is_ready():
    ages = {"mul": 0, "tanh": 1, "sin": 2, "cos": 3}
    assert topological_order(HEADS, HEADS.__getitem__, lambda node: -ages[node]) == ["cos", "sin", "tanh", "mul"]
    assert topological_order(HEADS, HEADS.__getitem__, ages.__getitem__) == ["sin", "cos", "tanh", "mul"]


def test_dependence_is_the_set_of_roots_that_lead_to_a_node():
    masks = dependence(list(HEADS), HEADS, ["cos", "sin"])
    assert masks == {"cos": 0b01, "sin": 0b10, "tanh": 0b11, "mul": 0b11}


def test_a_root_may_lead_to_another():
    assert dependence(list(HEADS), HEADS, ["cos", "tanh"]) == {"cos": 0b01, "sin": 0, "tanh": 0b11, "mul": 0b11}


def test_nodes_with_one_key_have_one_number_and_numbers_rise_along_edges():
    assert numbered({"cos": 1, "sin": 2, "tanh": 3, "mul": 3}, HEADS) == {"cos": 0, "sin": 1, "tanh": 2, "mul": 2}


def test_a_segment_comes_after_all_that_pass_gradients_to_it_though_a_node_of_it_could_run_before():
    following = {"a": ["t1"], "b": ["t2"], "t1": ["t2"], "t2": []}
    number = numbered({"a": "a", "t1": "t", "b": "b", "t2": "t"}, following)
    assert number["a"] < number["t1"] and number["b"] < number["t2"]


def test_an_item_that_stands_alone_is_between_two_levels():
    following = {"a": ["f", "d"], "f": ["c"], "d": ["c"], "c": []}
    assert levels(["a", "f", "d", "c"], following, {"f"}) == {"a": 0, "f": 1, "d": 0, "c": 2}
    assert set(levels(["a", "f", "d", "c"], following, set()).values()) == {0}


@pytest.mark.parametrize(
    ("function", "apart", "joined"),
    [
        (lambda x: (x.tanh().sin(), x.tanh().cos()), 2, 1),
        (lambda x: (x.tanh().sin(), x.exp(), x.cos()), 3, 1),
        (lambda x: ((h := x.tanh()).sin(), h.cos()), 3, 1),
        (lambda x: ((h := x.tanh()).sin(), h), 2, 2),
        (lambda x: ((h := x.tanh()).sin(), h.exp(), h), 3, 2),
        (lambda x: (x.exp(), (h := x.tanh()).sin(), h), 3, 2),
    ],
)
def test_joined_results_are_apart_from_those_that_others_were_computed_from(function, apart: int, joined: int):
    x = torch.rand(3, requires_grad=True) * 1
    edges = {UserOutput(k): torch_compat.gradient_edge(result) for k, result in enumerate(function(x))}
    inputs = {torch_compat.gradient_edge(x): Primal(0)}
    for joins_results, count in ((False, apart), (True, joined)):
        found = find_segments(edges, inputs, 1, joins_results=joins_results)
        assert found is not None and found.count == count


class Fan(torch.autograd.Function):
    """Passes gradients to all of its inputs at once."""

    @staticmethod
    def forward(ctx, *inputs):
        return inputs[0].clone()

    @staticmethod
    def backward(ctx, gradient):
        return (gradient,) * len(ctx.needs_input_grad)


def order_of_hooks(inputs) -> list[int]:
    seen: list[int] = []
    for k, leaf in enumerate(inputs):
        leaf.register_hook(lambda _, k=k: seen.append(k))
    Fan.apply(*inputs).sum().backward()
    return seen


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10, 33])
def test_the_engine_visits_leaves_in_the_order_of_its_heap(count):
    assert order_of_hooks([torch.ones(1, requires_grad=True) for _ in range(count)]) == engine_order(count)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_arranged_leaves_are_visited_in_order(count, after):
    leaves = [torch.ones(1, requires_grad=True) for _ in range(count)]
    places = order_for_engine(range(count), after)
    seen = order_of_hooks([*(torch.ones(1, requires_grad=True) for _ in range(after)), *(leaves[k] for k in places)])
    assert [places[k - after] for k in seen[after:]] == list(range(count))
