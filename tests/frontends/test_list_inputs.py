"""Graphs that take lists."""

from __future__ import annotations

import operator

import torch
import torch.fx as fx

from aotgrad.frontends.list_inputs import taking_lists, with_items


def graph_of_a_list() -> fx.GraphModule:
    """`items[1] - x`."""
    graph = fx.Graph()
    items, x = graph.placeholder("items"), graph.placeholder("x")
    second = graph.call_function(operator.getitem, (items, 1))
    graph.output((graph.call_function(torch.sub, (second, x)),))
    return fx.GraphModule({}, graph)


def test_each_item_is_an_input():
    module, (a, b, x) = graph_of_a_list(), torch.rand(3, 2)
    flat, values = with_items(module, [[a, b], x])
    assert all(one is other for one, other in zip(values, (a, b, x), strict=True))
    assert [node.name for node in flat.graph.find_nodes(op="placeholder")] == ["items_0", "items_1", "x"]
    assert torch.equal(flat(*values)[0], b - x) and torch.equal(module([a, b], x)[0], b - x)


def test_the_lists_are_cleared():
    module, (a, b, x) = graph_of_a_list(), torch.rand(3, 2)
    given = [a, b]
    flat, _ = with_items(module, [given, x])
    assert torch.equal(taking_lists(flat)(given, x)[0], b - x) and given == []
