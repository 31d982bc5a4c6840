"""What counts as the same value in two graphs, and what is taken from an input."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.fx as fx

from aotgrad.ir import JointGraph
from aotgrad.passes.known_values import KnownValues, mark_kept_values, take_known_values
from aotgrad.slots import Primal, SlotSignature, UserOutput

aten = torch.ops.aten


def joint_of(inputs: int, build, size: int = 3) -> JointGraph:
    """A graph of `inputs` vectors that returns what `build(graph, *placeholders)` makes."""
    graph = fx.Graph()
    placeholders = [graph.placeholder(f"primals_{k + 1}") for k in range(inputs)]
    graph.output((build(graph, *placeholders),))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(size, device="meta")
    signature = SlotSignature(tuple(map(Primal, range(inputs))), (UserOutput(0),))
    return JointGraph(fx.GraphModule({}, graph), signature, frozenset(), frozenset())


def targets(joint: JointGraph) -> list:
    return [node.target for node in joint.module.graph.nodes if node.op == "call_function"]


def exp_of_sine(graph, x, *others):
    return graph.call_function(aten.exp.default, (graph.call_function(aten.sin.default, (x,)),))


def exp_of_sine_of_a_copy(graph, x, *others):
    return exp_of_sine(graph, graph.call_function(aten.clone.default, (x,)))


def piece_of_sine(graph, x, *others):
    sine = graph.call_function(aten.sin.default, (x,))
    return graph.call_function(operator.getitem, (graph.call_function(aten.unbind.int, (sine,)), 0))


def exp_of_cosine(graph, x, *others):
    return graph.call_function(aten.exp.default, (graph.call_function(aten.cos.default, (x,)),))


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (exp_of_sine, [aten.exp.default]),
        (exp_of_sine_of_a_copy, [aten.exp.default]),
        (exp_of_cosine, [aten.cos.default, aten.exp.default]),
    ],
)
def test_the_same_op_of_the_same_value_is_taken_from_the_input(build, left):
    known = KnownValues(joint_of(1, exp_of_sine), {0: 0}, {1: "sin_default"}, None)
    assert targets(take_known_values(joint_of(2, build), known)) == left


def test_inputs_that_are_one_tensor_share_a_place():
    known = KnownValues(joint_of(1, exp_of_sine), {0: 0}, {2: "sin_default"}, None).at((0, 0, 1))
    assert targets(take_known_values(joint_of(2, exp_of_sine), known)) == [aten.exp.default]


def test_another_layout_is_computed():
    known = KnownValues(joint_of(1, exp_of_sine, size=4), {0: 0}, {1: "sin_default"}, None)
    joint = joint_of(2, exp_of_sine)
    joint.module.graph.find_nodes(op="placeholder")[1].meta["val"] = torch.empty(4, device="meta")
    assert targets(take_known_values(joint, known)) == [aten.sin.default, aten.exp.default]


def two_masks(graph, x, *others):
    """The second of two draws."""
    graph.call_function(aten.bernoulli.default, (x,))
    return graph.call_function(aten.neg.default, (graph.call_function(aten.bernoulli.default, (x,)),))


@pytest.mark.parametrize(("name", "taken"), [("bernoulli_default", False), ("bernoulli_default_1", True)])
def test_random_numbers_are_the_same_if_drawn_at_the_same_place(name, taken):
    known = KnownValues(joint_of(1, two_masks), {0: 0}, {1: name}, None)
    joint = take_known_values(joint_of(2, two_masks), known)
    (negation,) = joint.module.graph.find_nodes(op="call_function", target=aten.neg.default)
    assert (negation.args[0].name == "primals_2") is taken
    assert targets(joint).count(aten.bernoulli.default) == 2, "the generator moves on as before"


def test_known_inputs_are_held_by_others():
    source = joint_of(1, exp_of_sine)
    known = KnownValues(source, {0: 0}, {2: "sin_default"}, KnownValues(source, {0: 0}, {1: "exp_default"}, None))
    assert mark_kept_values(joint_of(3, exp_of_sine), known).held_inputs == {0, 1, 2}
    assert mark_kept_values(source, None) is source


@pytest.mark.parametrize(("build", "private"), [(exp_of_sine, {2}), (piece_of_sine, frozenset())])
def test_the_caller_has_what_a_returned_piece_is_a_view_of(build, private):
    known = KnownValues(joint_of(1, build), {0: 0}, {2: "sin_default"}, None)
    assert mark_kept_values(joint_of(3, build), known).private_inputs == private
