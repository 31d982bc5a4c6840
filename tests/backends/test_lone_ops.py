"""Which ops are worth compiling by themselves, and that Inductor gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import aotgrad
from aotgrad import torch_compat
from aotgrad.backends.lone_ops import LARGE, MOVED, reason_to_leave

aten = torch.ops.aten


def why_left(function: Callable, elements: int) -> str | None:
    """Why the last op of a function of one tensor is not compiled alone."""
    with torch._subclasses.FakeTensorMode():
        module = make_fx(function, tracing_mode="fake")(torch.empty(elements))
    (*_, node) = [node for node in module.graph.nodes if node.op == "call_function"]
    return reason_to_leave(node)


def by_order(x):
    return aten.gather(x, 0, torch.empty(x.size(0), dtype=torch.int64))


def transposed(x):
    return x.view(-1, 64).t().clone(memory_format=torch.contiguous_format)


@pytest.mark.parametrize(
    ("function", "smallest"),
    [
        pytest.param(by_order, MOVED, id="gather"),
        pytest.param(transposed, MOVED, id="another layout"),
        pytest.param(lambda x: x.view(-1, 64).var(1), MOVED, id="variance"),
        pytest.param(lambda x: x.view(-1, 64).amax(1), MOVED, id="maximum"),
        pytest.param(torch.sin, LARGE, id="pointwise"),
    ],
)
def test_from_how_many_elements_on(function, smallest):
    assert why_left(function, smallest) is None
    reason = why_left(function, smallest - 64)
    assert reason is not None and reason.endswith(f" alone faster from {smallest} elements on, not {smallest - 64}")


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x.view(-1, 64) @ x.view(64, -1), id="product"),
        pytest.param(lambda x: x.view(-1, 64).cumsum(1), id="scan"),
        pytest.param(lambda x: x.view(-1, 64).sort(1)[0], id="sort"),
        pytest.param(torch.rand_like, id="random"),
        pytest.param(torch.sigmoid, id="pointwise"),
        pytest.param(lambda x: x.view(-1, 64).sum(0), id="reduction"),
    ],
)
def test_what_eager_does_as_well(function):
    reason = why_left(function, LARGE)
    assert reason is not None and reason.endswith(" alone no faster")


@pytest.mark.parametrize("function", [torch.tanh, torch.exp, torch.special.expm1, torch.erf, torch.log, torch.tan])
@pytest.mark.parametrize("is_slow", [True, False])
def test_functions_of_a_math_library_depend_on_the_processor(function, is_slow, monkeypatch):
    monkeypatch.setattr(torch_compat, "math_library_is_slow", lambda: is_slow)
    for elements in (LARGE, LARGE - 64):
        reason = why_left(function, elements)
        assert (reason is None) is (is_slow and elements == LARGE)
        assert reason is None or ("from 4194304 elements on" in reason) is is_slow
    reason = why_left(lambda x: function(x.bfloat16()), LARGE)
    assert reason is not None and reason.endswith(" alone no faster")


def test_a_copy_in_the_same_layout_moves_nothing():
    assert why_left(torch.clone, MOVED) == "Inductor makes aten.clone alone no faster"


def test_an_explanation_says_why_an_op_runs_eagerly():
    small, other = (aotgrad.explain(each, backend="inductor")(torch.ones(4)).note for each in (torch.sin, torch.sigmoid))
    assert small == (
        "1 op computes something, min_graph_ops is 2; Inductor makes aten.sin alone faster from 4194304 elements on, not 4: "
        "the original function runs eagerly"
    )
    assert other is not None and "Inductor makes aten.sigmoid alone no faster" in other
    assert aotgrad.explain(torch.sin, backend="inductor")(torch.empty(LARGE)).note is None


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
