"""Symbolic zeros: removing undefined tangents gives the same result as running on real zeros."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.fx as fx
from torch.fx.experimental.proxy_tensor import make_fx

from aotgrad.runtime.zeros import CannotMaterialize, remove_undefined, undefined_outputs

aten = torch.ops.aten
TANGENTS = 2


def linear_mixture(t1, t2, a, b):
    """Gradients that depend on one tangent or on both, in sums and in other ops."""
    s = t1 * a + t2 * b
    return t1 * b, s, t1 - t2, t2 - t1, torch.cat([t1, s]), (t2 * a).sum() + t1, a * b


def graph_of(function, *args) -> tuple[fx.Graph, list[fx.Node]]:
    module = make_fx(function, tracing_mode="fake")(*args)
    return module.graph, list(module.graph.find_nodes(op="placeholder"))


@pytest.mark.parametrize("defined", list(itertools.product([True, False], repeat=TANGENTS)))
def test_what_is_left_equals_running_on_zeros(defined):
    args = [torch.randn(3) for _ in range(4)]
    graph, nodes = graph_of(linear_mixture, *args)
    undefined = [node for node, is_defined in zip(nodes[:TANGENTS], defined, strict=True) if not is_defined]
    missing = undefined_outputs(graph, undefined, nodes[:TANGENTS])
    remove_undefined(graph, undefined, nodes[:TANGENTS])
    graph.eliminate_dead_code()
    results = fx.GraphModule({}, graph)(*(arg if k >= TANGENTS or defined[k] else None for k, arg in enumerate(args)))
    expected = linear_mixture(*(torch.zeros(3) if k < TANGENTS and not defined[k] else a for k, a in enumerate(args)))
    assert [result is None for result in results] == missing
    for result, value in zip(results, expected, strict=True):
        assert result is None or torch.equal(result, value)


def test_undefined_outputs_are_none():
    graph, nodes = graph_of(linear_mixture, *(torch.randn(3) for _ in range(4)))
    assert undefined_outputs(graph, nodes[:1], nodes[:2]) == [True, False, False, False, False, False, False]
    assert undefined_outputs(graph, nodes[:2], nodes[:2]) == [True] * 6 + [False]


def test_a_sum_drops_an_undefined_term():
    graph, nodes = graph_of(lambda t1, t2, a, b: [t1 * a + t2 * b], *(torch.randn(3) for _ in range(4)))
    remove_undefined(graph, nodes[1:2], nodes[:2])
    graph.eliminate_dead_code()
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [aten.mul.Tensor]


def test_a_broadcast_sum_keeps_its_size():
    graph, nodes = graph_of(lambda t1, t2: [t1 + t2], torch.randn(3), torch.randn(2, 3))
    remove_undefined(graph, nodes[1:], nodes)
    graph.eliminate_dead_code()
    (result,) = fx.GraphModule({}, graph)(torch.ones(3), None)
    assert torch.equal(result, torch.ones(2, 3))


def test_zeros_of_symbolic_size_cannot_be_made():
    module = make_fx(lambda t1, t2: [torch.cat([t1, t2])], tracing_mode="symbolic")(torch.randn(3), torch.randn(4))
    nodes = [node for node in module.graph.find_nodes(op="placeholder") if isinstance(node.meta["val"], torch.Tensor)]
    with pytest.raises(CannotMaterialize):
        remove_undefined(module.graph, nodes[1:], nodes)
