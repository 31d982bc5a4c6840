"""Whose memory a value lies in."""

from __future__ import annotations

import operator

import torch
import torch.fx as fx

from aotgrad.graph.memory_owners import memory_owner, memory_owners, owner_across_writes, viewed_node

aten = torch.ops.aten


def test_views_and_items_of_views_belong_to_what_they_show():
    graph = fx.Graph()
    x = graph.placeholder("x")
    sine = graph.call_function(aten.sin.default, (x,))
    pieces = graph.call_function(aten.split.Tensor, (sine, 1))
    piece = graph.call_function(operator.getitem, (pieces, 0))
    row = graph.call_function(aten._unsafe_view.default, (piece, [1]))
    graph.output((row,))
    nodes = [x, sine, pieces, piece, row]
    assert [viewed_node(node) for node in nodes] == [None, None, sine, pieces, piece]
    assert [memory_owner(node) for node in (*nodes, None)] == [x, sine, sine, sine, sine, None]
    assert memory_owners(nodes) == {node: memory_owner(node) for node in nodes}
    assert memory_owners(nodes, separate=[piece])[row] is piece


def test_an_item_of_values_has_memory_of_its_own():
    graph = fx.Graph()
    pair = graph.call_function(aten.var_mean.correction, (graph.placeholder("x"),))
    item = graph.call_function(operator.getitem, (pair, 0))
    assert memory_owner(item) is item


def test_a_write_in_place_returns_the_memory_that_it_writes_to():
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    sine = graph.call_function(aten.sin_.default, (x,))
    several = graph.call_function(aten._foreach_sin_.default, ([x, y],))
    item = graph.call_function(operator.getitem, (several, 1))
    copy = graph.call_function(aten.clone.default, (item,))
    for node in (x, y, sine, item, copy):
        node.meta["val"] = torch.ones(2)
    assert [owner_across_writes(node) for node in (sine, item, copy, several, None)] == [x, y, copy, None, None]
    assert memory_owner(sine) is sine
