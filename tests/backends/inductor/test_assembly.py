"""What a compiled graph consists of, as text."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from aotgrad.backends.inductor.assembly import Assembly
from aotgrad.backends.pieces import Cut, NodeGroup


def cut_in_three():
    graph = fx.Graph()
    x = graph.placeholder("x")
    nodes = [x]
    for op in (torch.sin, torch.sin, torch.cos):
        nodes.append(graph.call_function(op, (nodes[-1],)))
    graph.output((nodes[3], None, nodes[1], 2))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(2)
    return Cut.of(graph, [NodeGroup([node]) for node in nodes[1:]])


def test_pieces_are_called_as_the_cut_says():
    cut = cut_in_three()
    assembly = Assembly(("a", "b"), cut.sequence)
    assert [call.number for call in cut.sequence.calls] == [0, 0, 1]
    restored = Assembly.of_bytes(assembly.to_bytes())
    assert restored == assembly
    x = torch.ones(2)
    given = [x]
    pieces = {"a": lambda args: [torch.sin(*args)], "b": lambda args: [torch.cos(*args)]}
    found = restored.callable([pieces[key] for key in restored.keys])(given)
    assert given == [] and found[1:2] + found[3:] == (None, 2)
    torch.testing.assert_close((found[0], found[2]), (x.sin().sin().cos(), x.sin()))


def test_a_graph_that_is_one_piece():
    restored = Assembly.of_bytes(Assembly(("a",), None).to_bytes())
    assert restored == Assembly(("a",), None) and restored.callable([len]) is len


@pytest.mark.parametrize(
    "content", [b"", b"\n[]", b'\n{"keys": ["a"]}', b'\n{"keys": ["a"], "sequence": {"calls": [1]}}', b"\xff"]
)
def test_other_content_is_refused(content):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Assembly.of_bytes(content)
