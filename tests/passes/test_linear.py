"""Each pass does work in proportion to the graph: function calls are counted, not time."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
import torch.fx as fx

from aotgrad.ir import JointGraph
from aotgrad.passes import (
    JOINT,
    BatchMM,
    CommonSubexpressionElimination,
    ConstantPropagation,
    DeadCodeElimination,
    Peephole,
    RemoveLeftovers,
)
from tests.passes.graphs import aten, inference_graph

PASSES = [*dict.fromkeys(JOINT), BatchMM(max_flops=1 << 30)]


def chain_of_everything(graph: fx.Graph, node: fx.Node, length: int) -> fx.Node:
    """Work for every pass, `length` times."""
    call = graph.call_function
    for _ in range(length):
        node = call(aten.detach.default, (call(aten.sin.default, (node,)),))
        node = call(aten.clone.default, (call(aten.mul.Tensor, (node, 1)),))
        node = call(aten.t.default, (call(aten.t.default, (node,)),))
        tril = call(aten.tril.default, (call(aten.ones.default, ([4, 4],)),))
        one, other = (call(aten.mm.default, (node, tril)) for _ in range(2))
        node = call(aten.add.Tensor, (one, call(aten.cos.default, (other,))))
        call(aten.exp.default, (node,))
    return node


def fan(graph: fx.Graph, node: fx.Node, length: int) -> fx.Node:
    """Equal values, views and copies with one reader, which has as many arguments."""
    call = graph.call_function
    first = call(aten.sin.default, (node,))
    equal = [call(aten.sin.default, (node,)) for _ in range(length)]
    copies = [call(aten.clone.default, (call(aten.t.default, (call(aten.t.default, (first,)),)),)) for _ in range(length)]
    detached = [call(aten.detach.default, (first,)) for _ in range(length)]
    return call(aten.cat.default, ([*equal, *copies, *detached],))


def tower_of_views(graph: fx.Graph, node: fx.Node, length: int) -> fx.Node:
    """A view of a view of a view."""
    for size in [[2, 8], [16], [4, 4]] * length:
        node = graph.call_function(aten.view.default, (node, size))
        node = graph.call_function(aten.alias.default, (node,))
    return node


SHAPES = {"chain": chain_of_everything, "fan": fan, "tower": tower_of_views}


def graph_of(shape: Callable, length: int) -> JointGraph:
    return inference_graph(lambda graph, x: shape(graph, x, length), like=torch.ones(4, 4))


def calls_made(run: Callable[[], object]) -> int:
    """How many functions are called, of Python and of C."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("each", PASSES, ids=lambda each: each.name)
def test_work_grows_with_the_graph(each, shape):
    small, large = (graph_of(SHAPES[shape], length) for length in (32, 128))
    each.apply(graph_of(SHAPES[shape], 4))  # Caches fill.
    work = [calls_made(lambda joint=joint: each.apply(joint)) for joint in (small, large)]
    nodes = [len(graph_of(SHAPES[shape], length).module.graph.nodes) for length in (32, 128)]
    assert work[1] / work[0] < 1.1 * nodes[1] / nodes[0]


def test_quadratic_work_is_noticed():
    def quadratic(joint: JointGraph) -> None:
        for _ in joint.module.graph.nodes:
            list(map(str, joint.module.graph.nodes))

    small, large = (graph_of(chain_of_everything, length) for length in (4, 16))
    assert calls_made(lambda: quadratic(large)) > 12 * calls_made(lambda: quadratic(small))


WORKERS = (DeadCodeElimination(), Peephole(), CommonSubexpressionElimination(), RemoveLeftovers(), ConstantPropagation())


@pytest.mark.parametrize("each", WORKERS, ids=lambda each: each.name)
def test_each_pass_has_work_to_do(each):
    """Otherwise the test above would say nothing."""
    joint = graph_of(chain_of_everything, 4)
    before = len(joint.module.graph.nodes)
    DeadCodeElimination().apply(each.apply(joint))
    assert len(joint.module.graph.nodes) < before
