"""Which ops are worth compiling by themselves, and that Inductor gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import aotgrad
from aotgrad.backends.lone_ops import LARGE, MOVED, gains_alone

aten = torch.ops.aten


def gains(function: Callable, elements: int) -> bool:
    """Whether the last op of a function of one tensor gains."""
    with torch._subclasses.FakeTensorMode():
        module = make_fx(function, tracing_mode="fake")(torch.empty(elements))
    (*_, node) = [node for node in module.graph.nodes if node.op == "call_function"]
    return gains_alone(node)


def by_order(x):
    return aten.gather(x, 0, torch.empty(x.size(0), dtype=torch.int64))


def transposed(x):
    return x.view(-1, 64).t().clone(memory_format=torch.contiguous_format)


@pytest.mark.parametrize(
    ("function", "smallest"),
    [
        pytest.param(by_order, MOVED, id="gather"),
        pytest.param(transposed, MOVED, id="another layout"),
        pytest.param(torch.sin, LARGE, id="pointwise"),
    ],
)
def test_from_how_many_elements_on(function, smallest):
    assert gains(function, smallest)
    assert not gains(function, smallest - 64)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.view(-1, 64) @ x.view(64, -1), id="product"),
        pytest.param(lambda x: x.view(-1, 64).cumsum(1), id="scan"),
        pytest.param(lambda x: x.view(-1, 64).sort(1)[0], id="sort"),
        pytest.param(torch.rand_like, id="random"),
        pytest.param(torch.tanh, id="pointwise"),
        pytest.param(lambda x: x.view(-1, 64).sum(0), id="reduction"),
    ],
)
def test_what_eager_does_as_well(function):
    assert not gains(function, LARGE)


def test_a_copy_in_the_same_layout_moves_nothing():
    assert not gains(torch.clone, MOVED)


@pytest.mark.parametrize("way", ["aot_function", "dynamo"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("elements", "options", "kind"),
    [
        (MOVED, {}, "compilations"),
        (MOVED // 2, {}, "small_graphs"),
        (MOVED, {"min_graph_ops": 2}, "small_graphs"),
    ],
)
def test_inductor_gets_a_large_one(elements, options, kind, dynamic, way):
    torch._dynamo.reset()
    order = torch.randperm(elements)
    x = torch.randn(elements, requires_grad=True)
    if way == "dynamo":
        compiled = torch.compile(lambda x: x[order], backend="aotgrad", dynamic=dynamic, options=options)
    else:
        compiled = aotgrad.aot_function(lambda x: x[order], "inductor", dynamic=dynamic, options=options)
    before = Counter(aotgrad.counters)
    result = compiled(x)
    assert aotgrad.counters[kind] == before[kind] + 1
    assert torch.equal(result, x[order])
    (gradient,) = torch.autograd.grad(result, x, result)
    assert torch.equal(gradient, x)
