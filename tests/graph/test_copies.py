"""Copies of graphs are those of `torch.fx`."""

from __future__ import annotations

import torch
import torch.fx as fx

from aotgrad.graph.copies import copy_graph, copy_graph_module, copy_nodes


def graph_of_a_function() -> fx.Graph:
    graph = fx.symbolic_trace(lambda x, y: (torch.cat([x, y], dim=0).sin(), None, 2)).graph
    for number, node in enumerate(graph.nodes):
        node.meta["number"] = number
    return graph


def described(graph: fx.Graph) -> list[str]:
    return [f"{node.format_node()} {node.meta}" for node in graph.nodes] + [str(graph)]


def test_a_copy_has_the_nodes_names_and_meta() -> None:
    source = graph_of_a_function()
    copies: dict[fx.Node, fx.Node] = {}
    copy = copy_graph(source, copies)
    copy.lint()
    assert described(copy) == described(source)
    assert [copies[node] for node in source.nodes if node.op != "output"] == list(copy.nodes)[:-1]
    assert all(copies[node].meta is not node.meta for node in copies)


def test_arguments_are_replaced_by_what_is_given() -> None:
    source = graph_of_a_function()
    (x, y) = source.find_nodes(op="placeholder")
    graph = fx.Graph()
    z = graph.placeholder("z")
    results = copy_nodes(graph, source, {x: z, y: z})
    graph.output(results)
    graph.lint()
    assert [node.name for node in graph.nodes] == ["z", "cat", "sin", "output"]
    assert results[1:] == (None, 2)


def test_a_graph_without_an_output_returns_nothing() -> None:
    source = fx.Graph()
    source.placeholder("x")
    assert copy_nodes(fx.Graph(), source, {}) is None


def test_the_copy_of_a_module_has_its_own_graph_and_meta() -> None:
    module = fx.GraphModule(torch.nn.Linear(2, 1), graph_of_a_function())
    copied = copy_graph_module(module)
    assert copied.graph is not module.graph
    for node in copied.graph.nodes:
        node.meta.clear()
    assert [node.meta["number"] for node in module.graph.nodes] == list(range(len(module.graph.nodes)))
    assert torch.equal(copied(torch.zeros(2), torch.ones(2))[0], module(torch.zeros(2), torch.ones(2))[0])
