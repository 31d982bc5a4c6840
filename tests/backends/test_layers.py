"""Which layers of a graph are equal, where they are cut, and what a piece computes again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx
from torch.fx.experimental.proxy_tensor import make_fx

from aotgrad.backends.boxed_code import boxed_code
from aotgrad.backends.layers import LEAST_OF_PART, Layers, cut_layers
from aotgrad.backends.pieces import Cut, Piece, compile_pieces, copy_with_sizes

LAYERS = 12
WEIGHTS = [torch.randn(6, 6) for _ in range(2 * LAYERS)]
X = torch.randn(5, 6)


def traced(function: Callable, *args: torch.Tensor, mode: str = "fake") -> fx.GraphModule:
    return make_fx(function, tracing_mode=mode)(*args)


def residual(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor]:
    for k in range(0, len(weights), 2):
        hidden = torch.nn.functional.layer_norm(x, (6,)).mm(weights[k].t()).relu()
        x = x + hidden.mm(weights[k + 1]).sin() * hidden.mm(weights[k + 1]).cos() + x.neg().sigmoid() * x.tanh()
    return (x.sum(),)


def run(module: fx.GraphModule, cut: Cut, *args: Any) -> tuple[Any, int]:
    """The results of a cut, and how many pieces were compiled."""
    compiled: list[fx.GraphModule] = []

    def compile(piece: fx.GraphModule) -> Callable:
        compiled.append(piece)
        return boxed_code(piece)

    return compile_pieces(module, cut, compile)(list(args)), len(compiled)


def pieces_of_layers(module: fx.GraphModule) -> list[Piece]:
    """The pieces that are there several times; there is one kind of them."""
    cut = cut_layers(module.graph)
    assert cut is not None
    keys = [piece.key for piece in cut.pieces]
    (layer,) = {key for key in keys if keys.count(key) > 1}
    return [piece for piece in cut.pieces if piece.key == layer]


def test_small_layers_share_a_piece_and_one_value_flows_between_them() -> None:
    module = traced(residual, X, *WEIGHTS)
    cut = cut_layers(module.graph)
    assert cut is not None
    shared = pieces_of_layers(module)
    assert 1 < len(shared) < LAYERS
    assert all(len(each.makes) == 1 and len(each.reads) % 2 == 1 for each in shared)  # two weights a layer, and the value
    keys = [piece.key for piece in cut.pieces]
    results, compilations = run(module, cut, X, *WEIGHTS)
    torch.testing.assert_close(results, residual(X, *WEIGHTS), rtol=0, atol=0)
    assert compilations == len(set(keys)) < len(keys)


def test_large_layers_have_a_piece_each() -> None:
    assert len(pieces_of_layers(traced(residual, torch.randn(5000, 6), *WEIGHTS))) == LAYERS


def saving(always: bool) -> Callable:
    """A residual stream that returns a value of every second layer, as a forward whose backward needs it.

    `always`: others are returned of all layers.
    """

    def function(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        saved = []
        for k, weight in enumerate(weights):
            inside = torch.nn.functional.layer_norm(x, (6,)).mm(weight).relu()
            outside = (inside.sin() * inside.cos()).sigmoid().mm(weight)
            x = x + outside.tanh()
            saved += [outside.neg(), outside.exp(), outside.abs()] if always else []
            saved += [inside] if k % 2 else []
        return x.sum(), *saved

    return function


def test_layers_that_return_other_values_are_equal() -> None:
    function, x, weights = saving(always=True), torch.randn(5000, 6), WEIGHTS[:LAYERS]
    module = traced(function, x, *weights)
    assert len(pieces_of_layers(module)) == LAYERS
    cut = cut_layers(module.graph)
    assert cut is not None and any(None in piece.makes for piece in cut.pieces)
    results, _ = run(module, cut, x, *weights)
    torch.testing.assert_close(tuple(results), function(x, *weights), rtol=0, atol=0)


def test_layers_that_would_return_much_for_nobody_are_not_made_equal() -> None:
    module = traced(saving(always=False), torch.randn(5000, 6), *WEIGHTS[:LAYERS])
    cut = cut_layers(module.graph)
    assert cut is not None and not any(None in piece.makes for piece in cut.pieces)


def two_kinds_of_layers(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor]:
    """A block of two layers that differ, each with more ops than a part must have; the last layer has no other half."""
    for k, weight in enumerate(weights):
        function = torch.sin if k % 2 else torch.cos
        for _ in range(LEAST_OF_PART // 2):
            x = function(x.mm(weight))
    return (x.sum(),)


def test_a_block_of_layers_that_differ_is_cut_between_them() -> None:
    x, weights = torch.randn(5000, 6), WEIGHTS[:5]
    module = traced(two_kinds_of_layers, x, *weights)
    cut = cut_layers(module.graph)
    assert cut is not None
    keys = [piece.key for piece in cut.pieces]
    assert sorted(keys.count(key) for key in set(keys)) == [1, 2, 3]
    results, _ = run(module, cut, x, *weights)
    torch.testing.assert_close(tuple(results), two_kinds_of_layers(x, *weights), rtol=0, atol=0)


def test_layers_of_other_sizes_are_not_equal() -> None:
    module = traced(residual, X, *WEIGHTS[:4], torch.randn(7, 6), torch.randn(7, 6), *WEIGHTS[4:])
    cut = cut_layers(module.graph)
    assert cut is None or len({piece.key for piece in cut.pieces}) > 2


def test_a_graph_without_equal_layers_is_compiled_whole() -> None:
    assert cut_layers(traced(lambda x, w: (x.mm(w).sin().sum(),), X, WEIGHTS[0]).graph) is None
    chains = traced(lambda x: (*(x[k].sin().cos() for k in range(5)),), X)
    assert cut_layers(chains.graph) is None  # too small


def test_symbolic_sizes() -> None:
    module = traced(residual, X, *WEIGHTS, mode="symbolic")
    cut = cut_layers(module.graph)
    assert cut is not None and len({piece.key for piece in cut.pieces}) < len(cut.pieces)
    results, _ = run(module, cut, X, *WEIGHTS)
    torch.testing.assert_close(results, residual(X, *WEIGHTS), rtol=0, atol=0)


def cut_before(module: fx.GraphModule, *names: str) -> Cut:
    layers = Layers.of(copy_with_sizes(module.graph))
    return layers.cut_at(k for k, op in enumerate(layers.ops) if op.name in names)


def test_views_and_cheap_values_of_what_is_there_are_computed_again() -> None:
    def function(x, w):
        hidden = x.mm(w)
        rows, gate = hidden.t(), hidden.sigmoid() * 2
        return rows.mm(x), gate * hidden

    module = traced(function, X, WEIGHTS[0])
    first, second = cut_before(module, "mm_1").pieces
    assert first.makes == ("mm",) and {"t", "sigmoid", "mul"} <= {node.name for node in second.graph.nodes}
    results, _ = run(module, cut_before(module, "mm_1"), X, WEIGHTS[0])
    torch.testing.assert_close(tuple(results), function(X, WEIGHTS[0]), rtol=0, atol=0)


def test_a_value_that_several_pieces_read_is_computed_once() -> None:
    def function(x, w):
        table = x.cos()
        return x.mm(w) * table, x.mm(w).sin() * table

    first, *others = cut_before(traced(function, X, WEIGHTS[0]), "mm", "mm_1").pieces
    assert first.makes == ("cos",) and all("cos" in piece.reads for piece in others)


def test_inputs_are_written_by_the_last_piece_that_reads_them() -> None:
    def function(x, w):
        new = w - x.t().mm(x)
        product = x.mm(w)
        w.copy_(new)
        return (product.sin(),)

    module = make_fx(torch.func.functionalize(function, remove="mutations"), tracing_mode="fake")(X, WEIGHTS[0])
    pieces = cut_before(module, "mm_1", "sin").pieces
    writers = [k for k, piece in enumerate(pieces) if any("copy_" in node.name for node in piece.graph.nodes)]
    assert writers == [1]
    x, w = X.clone(), WEIGHTS[0].clone()
    expected_x, expected_w = X.clone(), WEIGHTS[0].clone()
    results, _ = run(module, cut_before(module, "mm_1", "sin"), x, w)
    torch.testing.assert_close(tuple(results), function(expected_x, expected_w), rtol=0, atol=0)
    torch.testing.assert_close(w, expected_w, rtol=0, atol=0)


def test_communication_keeps_a_graph_whole() -> None:
    graph = traced(residual, X, *WEIGHTS).graph
    assert cut_layers(graph) is not None
    first = next(node for node in graph.nodes if node.op == "call_function")
    with graph.inserting_before(first):
        waited = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, first.args[:1])
    waited.meta = dict(first.args[0].meta)
    first.replace_input_with(first.args[0], waited)
    assert cut_layers(graph) is None


def test_writes_inside_of_a_graph_keep_it_whole() -> None:
    def written(x, *weights):
        x = x.clone()
        x.add_(1)
        return residual(x, *weights)

    assert cut_layers(traced(written, X, *WEIGHTS).graph) is None
