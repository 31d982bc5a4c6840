"""Reuse of dead buffers: which results are written in place; values are compared with the original graph."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
import torch.fx as fx
from torch.fx.experimental.proxy_tensor import make_fx

import aotgrad
from aotgrad.backends.buffer_reuse import BY_METHOD, BY_OUT, reuse_buffers
from aotgrad.backends.eager import compile_eager
from aotgrad.graph import op_table
from tests.numerics.against_eager import assert_like_eager

aten = torch.ops.aten


def traced(function: Callable, *args: torch.Tensor) -> fx.GraphModule:
    module = make_fx(function, tracing_mode="fake")(*args)
    module.graph.eliminate_dead_code()
    return module


def calls(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function"]


def written(function: Callable, *args: torch.Tensor) -> list[str]:
    """The nodes that write into an argument; checks the results against the original graph."""
    module = traced(function, *args)
    given = [arg.clone() for arg in args]
    expected = copy.deepcopy(module)(*[arg.clone() for arg in args])
    reused = reuse_buffers(module)
    found = reused(*given)
    pairs = zip(found, expected, strict=True)
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in pairs)
    assert all(map(torch.equal, given, args)), "an input was written to"
    return [node.name for node in calls(reused) if not op_table.is_getitem(node.target) and node.target._schema.is_mutable]


def ones(*size: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(size).numel()).view(size) / 10


LISTS = ["_foreach_div", "_foreach_add"]

CASES: dict[str, tuple[Callable, list[str]]] = {
    "a product and an activation": (lambda x, y: [aten.relu(aten.mm(x, y))], ["relu"]),
    "a chain": (lambda x, y: [aten.exp(aten.sin(aten.mm(x, y)))], ["sin", "exp"]),
    "lists": (lambda x, y: aten._foreach_add(aten._foreach_div(aten._foreach_sqrt([x, y]), [2.0, 3.0]), 1.0), LISTS),
    "a list of inputs": (lambda x, y: aten._foreach_sqrt([x, y]), []),
    "a list in another order": (lambda x, y: aten._foreach_div(aten._foreach_sqrt([x, y])[::-1], 2.0), ["_foreach_div"]),
    "a part of a list": (lambda x, y: aten._foreach_div(aten._foreach_sqrt([x, y])[:1], 2.0), ["_foreach_div"]),
    "an item of a list that is read later": (
        lambda x, y: (lambda roots: [*aten._foreach_div(roots, 2.0), aten.relu(roots[0])])(aten._foreach_sqrt([x, y])),
        [],
    ),
    "an item twice": (lambda x, y: (lambda root: aten._foreach_div([root, root], 2.0))(aten._foreach_sqrt([x])[0]), []),
    "two items of one op": (
        lambda x, y: (lambda roots: aten._foreach_mul([roots[0]], [roots[1]]))(aten._foreach_sqrt([x, y.t()])),
        [],
    ),
    "another dtype": (lambda x, y: aten._foreach_div(aten._foreach_add([(x > 0).int()], 1), 2.0), []),
    "an input": (lambda x, y: [aten.relu(x)], []),
    "a view of an input": (lambda x, y: [aten.relu(x.t())], []),
    "a result": (lambda x, y: (lambda m: [m, aten.relu(m)])(aten.mm(x, y)), []),
    "a view of it is a result": (lambda x, y: (lambda m: [m.t(), aten.relu(m)])(aten.mm(x, y)), []),
    "it is read later": (lambda x, y: (lambda m: [aten.mul(aten.relu(m), m)])(aten.mm(x, y)), ["mul"]),
    "a view of it is read later": (lambda x, y: (lambda m: [aten.mul(aten.relu(m), m.t())])(aten.mm(x, y)), ["mul"]),
    "it and its transpose are read": (lambda x, y: (lambda m: [aten.add(m, m.t())])(aten.mm(x, y)), []),
    "it is read twice": (lambda x, y: (lambda m: [aten.mul(m, m)])(aten.mm(x, y)), ["mul"]),
    "the second argument": (lambda x, y: [aten.sub(x, aten.mm(x, y))], ["sub"]),
    "a number": (lambda x, y: [aten.mul(aten.mm(x, y), 2.5)], ["mul"]),
    "another type": (lambda x, y: [aten.mul(aten.mm(x, y), torch.ones(3, 3, dtype=torch.float64))], []),
    "a larger result": (lambda x, y: [aten.mul(aten.sum(x, [0]), y)], []),
    "other strides": (lambda x, y: [aten.add(aten.mm(x, y).t(), x)], []),
    "a backward": (lambda x, y: [aten.tanh_backward(aten.mm(x, y), x)], ["tanh_backward"]),
    "of an op that may return its argument": (lambda x, y: [aten.relu(aten._unsafe_view(aten.mm(x, y), [9]))], []),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_in_place(name: str) -> None:
    function, expected = CASES[name]
    assert written(function, ones(3, 3), ones(3, 3)) == expected


ARGUMENTS = {
    aten.elu_backward.default: lambda m, x: (m, 0.5, 1.0, 1.0, False, x),
    aten.leaky_relu_backward.default: lambda m, x: (m, x, 0.5, False),
    aten.pow.Tensor_Scalar: lambda m, x: (m, 3),
    aten.threshold_backward.default: lambda m, x: (m, x, 0.5),
}


@pytest.mark.parametrize("op", [*BY_METHOD, *BY_OUT], ids=str)
def test_every_op_of_the_tables_computes_the_same_in_place(op) -> None:
    tensors = sum(str(argument.type) == "Tensor" for argument in op._schema.arguments)
    arguments = ARGUMENTS.get(op, lambda m, x: (m, x)[:tensors])
    assert len(written(lambda x, y: [op(*arguments(aten.mm(x, y), x))], ones(3, 3), ones(3, 3))) == 1


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed: int) -> None:
    choice = random.Random(seed)
    steps = [
        lambda a, b: aten.mm(a, b),
        lambda a, b: aten.add(a, b),
        lambda a, b: aten.mul(a, b),
        lambda a, b: aten.sin(a),
        lambda a, b: aten.relu(a),
        lambda a, b: aten.tanh_backward(a, b),
        lambda a, b: a.t(),
        lambda a, b: aten.clone(a),
        lambda a, b: a.narrow(0, 1, 1).expand(3, 3),
        lambda a, b: aten.sum(a, [0], True).expand(3, 3),
    ]
    plan = [(choice.choice(steps), choice.random(), choice.random()) for _ in range(12)]
    kept = [choice.randrange(14) for _ in range(2)]

    def function(x, y):
        values = [x, y]
        for step, first, second in plan:
            values.append(step(values[int(first**0.3 * len(values))], values[int(second**0.3 * len(values))]))
        return [values[-1], *(values[k] for k in kept)]

    written(function, ones(3, 3), ones(3, 3) - 0.5)


def test_the_table_of_ops_lists_what_can_be_written_in_place() -> None:
    assert {str(op) for op in BY_METHOD.keys() | BY_OUT.keys()} == op_table.OVERWRITING


def test_the_graph_that_is_shown_stays_functional() -> None:
    module = traced(lambda x, y: [aten.relu(aten.mm(x, y))], ones(3, 3), ones(3, 3))
    reuse_buffers(module)
    assert "relu_" not in module.code


def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w).relu() @ w).tanh() * 2


def test_like_eager() -> None:
    def make() -> tuple[torch.Tensor, torch.Tensor]:
        return ones(3, 3).double().requires_grad_(), (ones(3, 3) - 0.5).double().requires_grad_()

    assert_like_eager(model, make, aotgrad.aot_function(model, compile_eager))


def test_a_retained_graph_gives_the_same_gradients_again() -> None:
    x, w = ones(3, 3).requires_grad_(), (ones(3, 3) - 0.5).requires_grad_()
    y = aotgrad.aot_function(model, compile_eager)(x, w).sum()
    runs = [torch.autograd.grad(y, (x, w), retain_graph=True) for _ in range(3)]
    expected = torch.autograd.grad(model(x, w).sum(), (x, w))
    assert all(all(map(torch.equal, found, expected)) for found in runs)
