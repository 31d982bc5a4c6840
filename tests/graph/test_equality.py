"""Which nodes compute the same, in one graph and across graphs."""

from __future__ import annotations

import torch
import torch.fx as fx

from aotgrad.graph.equality import call_key, value_numbers

aten = torch.ops.aten


def graph_of(*calls) -> tuple[fx.GraphModule, list[fx.Node]]:
    """A graph with the input x, and a node for each call: an op and its other arguments; a number is an earlier node."""
    graph = fx.Graph()
    nodes = [graph.placeholder("x")]
    for op, *args in calls:
        nodes.append(graph.call_function(op, tuple(nodes[arg] if type(arg) is int else arg for arg in args)))
    graph.output(tuple(nodes))
    return fx.GraphModule({}, graph), nodes


def test_equal_calls_have_equal_keys():
    _, (_, one, same, other) = graph_of((aten.mul.Tensor, 0, 1.0), (aten.mul.Tensor, 0, 1.0), (aten.mul.Tensor, 0, -0.0))
    assert call_key(one) == call_key(same) != call_key(other)


def test_equal_values_have_equal_numbers_across_graphs():
    known: dict = {}
    first, second = (
        graph_of((aten.sin.default, 0), (aten.cos.default, 1)),
        graph_of((aten.cos.default, 0), (aten.sin.default, 0)),
    )
    one, other = (value_numbers(module, {nodes[0]: "x"}, known) for module, nodes in (first, second))
    (x, sine, cosine), (y, of_input, same_sine) = first[1], second[1]
    assert one[x] == other[y] and one[sine] == other[same_sine] and one[cosine] != other[of_input]


def test_the_nth_draw_equals_the_nth_draw():
    known: dict = {}
    graphs = [graph_of((aten.rand_like.default, 0), (aten.rand_like.default, 0)) for _ in range(2)]
    (_, first, second), again = ([*value_numbers(module, {nodes[0]: "x"}, known).values()] for module, nodes in graphs)
    assert first != second and again[1:] == [first, second]


def test_arguments_that_are_not_read_do_not_count():
    backward = aten.native_batch_norm_backward.default
    calls = [(backward, 0, 0, None, mean, 0, 0.0, 0.0, trained, 1e-5, None) for trained in (True, False) for mean in (0, 1)]
    _, (_, _, *nodes) = graph_of((aten.sin.default, 0), *calls)
    one, other, evaluated, with_other_mean = map(call_key, nodes)
    assert one == other and evaluated != with_other_mean


def test_constants_are_compared_by_content():
    known: dict = {}
    for content, expected in (([1, 2], 0), ([1, 2], 0), ([1, 3], 1), ([1.0, 2.0], 2)):
        graph = fx.Graph()
        graph.output(node := graph.get_attr("constant"))
        root = torch.nn.Module()
        root.constant = torch.tensor(content)
        assert value_numbers(fx.GraphModule(root, graph), {}, known)[node] == expected
