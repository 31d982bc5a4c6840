"""Graphs in pieces: what they keep alive, and which pieces are equal."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.fx as fx

from aotgrad.backends.boxed_code import boxed_code
from aotgrad.backends.pieces import Cut, NodeGroup, compile_pieces, copy_with_sizes
from aotgrad.backends.uncompiled import cut_uncompiled
from tests.backends.test_uncompiled import between, traced


def test_pieces_compute_what_the_graph_does_and_let_go_of_what_nobody_reads() -> None:
    alive: list[weakref.ref] = []
    seen: list[tuple[str, bool]] = []

    def compile_dense(module: fx.GraphModule):
        run, names = boxed_code(module), [node.name for node in module.graph.nodes]

        def watched(args: list):
            seen.append(("exp" if "exp" in names else "mul", any(each() is not None for each in alive)))
            results = run(args)
            alive.extend(map(weakref.ref, results))
            return results

        return watched

    x, y = torch.eye(3), torch.ones(3, 2)
    args = [x, y]
    module = traced(lambda *args: (between(*args),), x, y)
    (result,) = compile_pieces(module, cut_uncompiled(module.graph), compile_dense)(args)
    assert torch.equal(result, between(x, y)) and args == []
    assert seen == [("mul", False), ("exp", False)]  # what the first piece has made is freed when the last one starts


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        (lambda x: x + 2, lambda x: x + 2, True),
        (lambda x: x + 2, lambda x: x + 2.0, False),
        (lambda x: x + 2, lambda x: x + 3, False),
        (lambda x: x.sin(), lambda x: x.cos(), False),
        (lambda x: x[0], lambda x: x[1], False),
        (lambda x: x * x, lambda x: x * x, True),
    ],
)
def test_pieces_are_equal_if_they_compute_the_same(one, other, are_equal) -> None:
    module = traced(lambda x, y: (one(x), other(y)), torch.ones(2, 2), torch.ones(2, 2))
    graph = copy_with_sizes(module.graph)
    ops = [node for node in graph.nodes if node.op == "call_function"]
    half = len(ops) // 2
    pieces = Cut.of(graph, [NodeGroup(ops[:half]), NodeGroup(ops[half:])]).pieces
    assert (pieces[0].key == pieces[1].key) is are_equal


def test_a_constant_is_a_result() -> None:
    module = traced(lambda x: (x.sin(),), torch.ones(2))
    (sin,) = (node for node in module.graph.nodes if node.op == "call_function")
    next(node for node in module.graph.nodes if node.op == "output").args = ((None, sin, 3),)
    graph = copy_with_sizes(module.graph)
    cut = Cut.of(graph, [NodeGroup([node for node in graph.nodes if node.op == "call_function"])])
    first, found, last = compile_pieces(module, cut, boxed_code)([torch.ones(2)])
    assert (first, last) == (None, 3) and torch.equal(found, torch.ones(2).sin())


def test_what_nobody_reads_is_freed_at_once() -> None:
    module = traced(lambda x: (x.sin().cos().exp(),), torch.ones(3))
    graph = copy_with_sizes(module.graph)
    sin, cos, exp = (node for node in graph.nodes if node.op == "call_function")
    cut = Cut.of(graph, [NodeGroup([sin, cos], unread=frozenset([sin])), NodeGroup([exp])])
    assert [piece.makes for piece in cut.pieces] == [(None, "cos"), ("exp",)]
    results: list[weakref.ref] = []
    alive: list[list[bool]] = []

    def compile(piece: fx.GraphModule):
        run = boxed_code(piece)

        def watched(args: list):
            alive.append([each() is not None for each in results])
            found = run(args)
            results.extend(map(weakref.ref, found))
            return found

        return watched

    x = torch.randn(3)
    torch.testing.assert_close(compile_pieces(module, cut, compile)([x]), (x.sin().cos().exp(),), rtol=0, atol=0)
    assert alive == [[], [False, True]]


@pytest.mark.parametrize("y", [torch.ones(3, 2), torch.ones(2, 2).double(), torch.ones(2, 2).t()[:, :1].expand(2, 2)])
def test_inputs_of_another_kind_make_another_piece(y: torch.Tensor) -> None:
    module = traced(lambda x, y: (x.sin(), y.sin()), torch.ones(2, 2), y)
    graph = copy_with_sizes(module.graph)
    pieces = Cut.of(graph, [NodeGroup([node]) for node in graph.nodes if node.op == "call_function"]).pieces
    assert pieces[0].key != pieces[1].key


def test_a_node_in_several_groups_is_computed_by_each() -> None:
    module = traced(lambda x: (x.sin().cos(), x.sin().exp()), torch.ones(3))
    graph = copy_with_sizes(module.graph)
    sin, cos, other_sin, exp = (node for node in graph.nodes if node.op == "call_function")
    exp.args = (sin,)
    graph.erase_node(other_sin)
    cut = Cut.of(graph, [NodeGroup([sin, cos]), NodeGroup([sin, exp])])
    assert [(piece.reads, piece.makes) for piece in cut.pieces] == [(("x_1",), ("cos",)), (("x_1",), ("exp",))]
    x = torch.randn(3)
    found = compile_pieces(module, cut, boxed_code)([x])
    torch.testing.assert_close(found, (x.sin().cos(), x.sin().exp()), rtol=0, atol=0)
