"""Dead code, on graphs written by hand."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.fx as fx

from aotgrad.passes import DeadCodeElimination
from tests.numerics.against_eager import assert_like_eager, leaf
from tests.passes.graphs import aten, inference_graph, targets, tidied

DCE = DeadCodeElimination()


def test_what_only_dead_nodes_need_goes_too():
    def build(graph, x):
        graph.call_function(aten.cos.default, (graph.call_function(aten.exp.default, (x,)),))
        return graph.call_function(aten.sin.default, (x,))

    assert targets(tidied(inference_graph(build), DCE)) == [aten.sin.default]


@pytest.mark.parametrize(
    ("op", "arguments"),
    [(aten.bernoulli.default, ()), (aten._assert_async.msg, ("message",)), (aten.native_dropout.default, (0.5, True))],
)
def test_random_ops_and_checks_stay(op, arguments):
    def build(graph, x):
        graph.call_function(op, (x, *arguments))
        return graph.call_function(aten.sin.default, (x,))

    like = torch.ones(()) if op is aten._assert_async.msg else None
    assert targets(tidied(inference_graph(build, like), DCE)) == [op, aten.sin.default]


def test_items_of_a_random_op_go_and_the_op_stays():
    def build(graph, x):
        dropout = graph.call_function(aten.native_dropout.default, (x, 0.5, True))
        graph.call_function(operator.getitem, (dropout, 1))
        return graph.call_function(operator.getitem, (dropout, 0))

    assert targets(tidied(inference_graph(build), DCE)) == [aten.native_dropout.default, operator.getitem]


def branch(op) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output((graph.call_function(op, (graph.placeholder("x"),)),))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize(("op", "stays"), [(aten.rand_like.default, True), (aten.sin.default, False)])
def test_control_flow_stays_if_a_branch_has_an_effect(op, stays):
    def build(graph, x):
        branches = [graph.get_attr(name) for name in ("yes", "no")]
        cond = graph.call_function(torch.ops.higher_order.cond, (True, *branches, (x,)))
        cond.meta["val"] = (x.meta["val"],)
        return graph.call_function(aten.sin.default, (x,))

    joint = inference_graph(build, submodules={"yes": branch(op), "no": branch(aten.cos.default)})
    assert (torch.ops.higher_order.cond in targets(tidied(joint, DCE))) == stays


def test_numbers_drawn_after_a_dead_draw():
    def function(x):
        torch.nn.functional.dropout(x, 0.5)
        return torch.nn.functional.dropout(x, 0.5)

    assert_like_eager(function, lambda: (leaf(8),), "eager")
