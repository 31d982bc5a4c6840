"""Every node says which line of the user's code it comes from; a backward node, that of the forward op it differentiates."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import aotgrad

from .against_eager import leaf


def graphs_of(function, args, *, through_dynamo: bool = False):
    """The forward and the backward graph that a compiler gets for a call and its backward."""
    graphs = []

    def keep(module, inputs):
        graphs.append(module.graph)
        return aotgrad.nop(module, inputs)

    if through_dynamo:
        torch._dynamo.reset()
        aotgrad.backends.register("keeping", fw_compiler=keep)
        compiled = torch.compile(function, backend=aotgrad.DynamoBackend("keeping"))
    else:
        compiled = aotgrad.aot_function(function, keep, partition_fn=aotgrad.default_partition)
    compiled(*args).sum().backward()
    return graphs


def nodes_of(graph, name: str):
    return [node for node in graph.nodes if node.op == "call_function" and name in str(node.target)]


def last_line(node) -> str:
    """The user's line, without the carets that Dynamo puts under it."""
    lines = [line.strip() for line in node.meta["stack_trace"].splitlines()]
    return [line for line in lines if line.strip("^~")][-1]


def three_lines(x, w):
    y = x @ w
    z = y.sigmoid()
    return z.tanh()


def arguments():
    return leaf(3, 4), leaf(4, 2)


@pytest.mark.parametrize("through_dynamo", [False, True], ids=["aot_function", "dynamo"])
def test_forward_nodes_carry_their_line(through_dynamo: bool) -> None:
    forward, _ = graphs_of(three_lines, arguments(), through_dynamo=through_dynamo)
    lines = {name: last_line(nodes_of(forward, name)[0]) for name in ("mm", "sigmoid", "tanh")}
    assert lines == {"mm": "y = x @ w", "sigmoid": "z = y.sigmoid()", "tanh": "return z.tanh()"}


@pytest.mark.parametrize("through_dynamo", [False, True], ids=["aot_function", "dynamo"])
def test_backward_nodes_carry_the_line_of_the_forward(through_dynamo: bool) -> None:
    _, backward = graphs_of(three_lines, arguments(), through_dynamo=through_dynamo)
    expected = {"tanh_backward": "return z.tanh()", "sigmoid_backward": "z = y.sigmoid()", "mm": "y = x @ w"}
    for name, line in expected.items():
        found = nodes_of(backward, name)
        assert found, name
        assert [last_line(node) for node in found] == [line] * len(found)


def test_every_call_of_the_backward_has_a_line() -> None:
    _, backward = graphs_of(three_lines, arguments())
    without = [node.name for node in backward.nodes if node.op == "call_function" and not node.meta.get("stack_trace")]
    assert without == []


def test_file_and_line_number_are_the_users() -> None:
    forward, backward = graphs_of(three_lines, arguments())
    first_line = inspect.getsourcelines(three_lines)[1]
    for graph, name in ((forward, "sigmoid"), (backward, "sigmoid_backward")):
        (node,) = nodes_of(graph, name)
        assert f'File "{__file__}", line {first_line + 2}, in three_lines' in node.meta["stack_trace"]


def test_forward_and_backward_share_their_sequence_number() -> None:
    forward, backward = graphs_of(three_lines, arguments())
    for name in ("sigmoid", "tanh"):
        (node,), (gradient,) = nodes_of(forward, name), nodes_of(backward, f"{name}_backward")
        assert node.meta["seq_nr"] == gradient.meta["seq_nr"]


def test_the_line_inside_of_a_module_is_the_users_call() -> None:
    class Model(nn.Module):
        def forward(self, x):
            return nn.functional.softplus(x)

    forward, backward = graphs_of(Model(), (leaf(3),))
    assert last_line(nodes_of(forward, "softplus")[0]) == "return nn.functional.softplus(x)"
    assert last_line(nodes_of(backward, "softplus_backward")[0]) == "return nn.functional.softplus(x)"


def test_module_names_reach_the_backward() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid())
    forward, backward = graphs_of(model, (leaf(2, 3),), through_dynamo=True)
    for graph, name, key in ((forward, "sigmoid", "nn_module_stack"), (backward, "sigmoid_backward", "fwd_nn_module_stack")):
        (node,) = nodes_of(graph, name)
        _, innermost = list(node.meta[key].values())[-1]
        assert "Sigmoid" in str(innermost)


def test_an_error_of_the_interpreter_names_the_line() -> None:
    function = aotgrad.aot_function(three_lines, aotgrad.backends.get("interpreter").fw_compiler)
    function(*arguments())
    (plan,) = function.plans()
    node = nodes_of(plan.executable.partition.forward.module.graph, "sigmoid")[0]
    node.meta["val"] = node.meta["val"].new_empty(7)
    with pytest.raises(aotgrad.errors.GraphCheckError, match=r"(?s)sigmoid.*z = y\.sigmoid\(\)"):
        function(*arguments())
