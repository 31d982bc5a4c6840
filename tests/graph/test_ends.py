"""What a graph returns."""

from __future__ import annotations

import torch.fx as fx

from aotgrad.graph.ends import output_node, outputs_of


def test_several_outputs() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    end = graph.output((x, None, 2))
    assert output_node(graph) is end
    assert outputs_of(graph) == (x, None, 2)


def test_a_subgraph_may_return_one_tensor() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(x)
    assert outputs_of(graph) == (x,)
