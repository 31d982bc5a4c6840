"""The interpreter backend: every value is compared with the traced one."""

from __future__ import annotations

import pytest
import torch
import torch.fx as fx

import aotgrad
from aotgrad.backends.interpreter import check_value, compile_interpreter
from aotgrad.errors import GraphCheckError


def node_with_line() -> fx.Node:
    graph = fx.Graph()
    node = graph.call_function(torch.ops.aten.sin.default, (graph.placeholder("x"),))
    node.meta["stack_trace"] = '  File "model.py", line 3, in f\n    y = x.sin()\n'
    return node


@pytest.mark.parametrize(
    ("actual", "traced", "difference"),
    [
        (torch.ones(2), torch.ones(2).double(), "dtype is torch.float32, traced as torch.float64"),
        (torch.ones(2), torch.empty(2, device="meta"), "device is cpu, traced as meta"),
        (torch.ones(2), torch.ones(2, 1), "number of dimensions is 1, traced as 2"),
        (torch.ones(2), torch.ones(3), r"shape is \(2,\), traced as \(3,\)"),
        (torch.ones(2, 3), torch.ones(3, 2).t(), r"stride is \[3, 1\], traced as \[1, 2\]"),
        ([torch.ones(2)], [torch.ones(3)], "shape"),
    ],
)
def test_a_difference_names_the_node_and_the_line(actual, traced, difference):
    with pytest.raises(GraphCheckError, match=difference) as raised:
        check_value(node_with_line(), actual, traced)
    assert "node sin_default (aten.sin.default), from" in str(raised.value)
    assert "y = x.sin()" in str(raised.value)


@pytest.mark.parametrize(
    ("actual", "traced"),
    [
        (torch.ones(1, 3), torch.empty_strided((1, 3), (7, 1))),
        (torch.ones(0, 3), torch.empty_strided((0, 3), (1, 5))),
        (3, 4),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse()),
    ],
)
def test_what_nobody_can_see_may_differ(actual, traced):
    check_value(node_with_line(), actual, traced)


def test_a_right_graph_runs():
    x = torch.randn(3, requires_grad=True)
    result = aotgrad.aot_function(lambda x: (x.sin() * x).sum(), compile_interpreter)(x)
    result.backward()
    torch.testing.assert_close(x.grad, (x.cos() * x + x.sin()).detach())


def test_a_wrong_graph_is_found():
    def spoil(module, inputs):
        for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            node.target = torch.ops.aten.sum.default
        return compile_interpreter(module, inputs)

    with pytest.raises(GraphCheckError, match="number of dimensions is 0, traced as 1, at node sin"):
        aotgrad.aot_function(torch.sin, spoil)(torch.ones(2))
