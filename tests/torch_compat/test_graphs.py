"""Feature tests of `aotgrad/torch_compat/graphs.py`."""

from __future__ import annotations

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from aotgrad import torch_compat as compat


def test_pass_counts():
    def function(x):
        outputs = torch.ops.higher_order.while_loop_stack_output(lambda x: x.sum() < 3, lambda x: (x * 2,), (x,), ())
        return outputs[0][-1]

    module = make_fx(function, tracing_mode="symbolic")(torch.ones(2))
    (count,) = compat.pass_counts([module.graph])
    assert str(count) == "u0"
    assert not compat.pass_counts([module.while_loop_body_graph_0.graph])


def test_insert_deferred_checks():
    def function(x):
        torch._check(x.item() < 5)
        return x * 2

    module = make_fx(function, tracing_mode="symbolic")(torch.tensor(3))
    before = len(module.graph.nodes)
    compat.insert_deferred_checks(module)  # a trace of somebody else's
    assert len(module.graph.nodes) == before


def test_the_fake_mode_of_a_graph(fake_mode):
    graph = fx.Graph()
    assert compat.fake_mode_of(graph) is not fake_mode
    graph.placeholder("x").meta["val"] = fake_mode.from_tensor(torch.ones(1))
    assert compat.fake_mode_of(graph) is fake_mode


def test_the_name_of_an_erased_node_is_free_again():
    graph = torch.fx.Graph()
    node = graph.placeholder("tangents_1")
    compat.erase_with_name(graph, node)
    assert graph.placeholder("tangents_1").name == "tangents_1"


def test_a_graph_takes_and_returns_nested_values():
    graph = fx.Graph()
    graph.output([graph.placeholder("a"), graph.placeholder("b")])
    _, spec = pytree.tree_flatten(([0], {"b": 0}))
    compat.returns_pytree(graph, ("first", "second"), spec, spec)
    assert fx.GraphModule(nn.Module(), graph)([1], {"b": 2}) == ([1], {"b": 2})


def test_a_graph_that_takes_its_arguments_apart():
    graph = fx.Graph()
    graph.output(graph.placeholder("a"))
    assert compat.takes_plain_arguments(graph)
    compat.returns_pytree(graph, ("first",), *(pytree.tree_flatten(tree)[1] for tree in (([0],), 0)))
    assert not compat.takes_plain_arguments(graph)


def test_a_new_node_is_what_torch_creates():
    def graph_of(new):
        graph = fx.Graph()
        x = graph.placeholder("x")
        node = new(graph)("call_function", torch.ops.aten.add.Tensor, (x, x), {"alpha": 2}, "x", int)
        graph.output(node)
        with graph.inserting_before(node):
            new(graph)("call_function", torch.ops.aten.sin.default, (x,), {}, "early", None)
        return graph

    def described(graph):
        return [(node.op, node.name, node.target, str(node.args), str(node.kwargs), node.type) for node in graph.nodes]

    ours = graph_of(lambda graph: lambda *args: compat.new_node(graph, *args))
    torchs = graph_of(lambda graph: graph.create_node)
    ours.lint()
    assert described(ours) == described(torchs)
    assert [node.name for node in ours.nodes] == ["x", "early", "x_1", "output"]
    assert len(ours.nodes) == 4
    assert len(ours.find_nodes(op="call_function", target=torch.ops.aten.sin.default)) == 1
    assert compat.graphs._are_nodes_added_as_known()


def test_hooks_see_a_new_node():
    module = fx.symbolic_trace(nn.Identity())
    seen = []
    module._register_create_node_hook(seen.append)
    node = compat.new_node(module.graph, "call_function", torch.ops.aten.sin.default, (), {}, "sin")
    assert seen == [node]
