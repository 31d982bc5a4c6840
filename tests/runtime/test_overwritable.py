"""Saved values that a backward writes over: which ones, when it may, and that nobody sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import aotgrad
from aotgrad.runtime.overwritable import are_owned
from tests import device
from tests.allocations import most_allocated

pytestmark = pytest.mark.skipif(
    device.DEVICE == "emulated", reason="the values are large, and Triton's interpreter takes minutes for them"
)

OPTIONS = {"min_graph_ops": 0}
WAYS: dict[str, Callable[[Callable], Callable]] = {
    "aot_function": lambda fn: aotgrad.aot_function(fn, "inductor", options=OPTIONS),
    "dynamo": lambda fn: torch.compile(fn, backend="aotgrad", options=OPTIONS),
}


def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The gradient of `x @ w` is as large as it, and its last reader."""
    return (x @ w).logsumexp(1).sum()


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(64, 16, requires_grad=True), torch.randn(16, 512, requires_grad=True)


def gradients(result: torch.Tensor, inputs: tuple[torch.Tensor, ...], **how: bool) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(result.sum(), inputs, **how)


@pytest.fixture(params=WAYS)
def compiled(request) -> Callable[[Callable], Callable]:
    torch._dynamo.reset()
    return WAYS[request.param]


def overwritable_of(result: torch.Tensor) -> list[str]:
    return sorted(slot.name for slot in result.grad_fn.backward.variants.overwritable)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        pytest.param(loss, ["mm"], id="computed for the backward alone"),
        pytest.param(lambda x, w: (y := x @ w, y.logsumexp(1).sum())[1] + 0 * y.sum(), ["mm"], id="read twice"),
        pytest.param(lambda x, w: (x @ w).sum() + x.sin().sum(), [], id="arguments"),
        pytest.param(lambda x, w: x.exp().sum() + w.sum(), [], id="small values"),
    ],
)
def test_what_may_be_written_over(function, names):
    assert overwritable_of(aotgrad.aot_function(function, "inductor", options=OPTIONS)(*leaves())) == names


def test_a_result_is_not_written_over():
    results = aotgrad.aot_function(lambda x, w: (y := x @ w, y.logsumexp(1)), "inductor", options=OPTIONS)(*leaves())
    assert overwritable_of(results[1]) == []


def test_the_gradient_takes_the_memory_of_the_value():
    (x, w), fn = leaves(), aotgrad.aot_function(loss, "inductor", options=OPTIONS)
    both = {}
    for retain in (False, True):
        gradients(fn(x, w), (x, w), retain_graph=retain)
        both[retain] = most_allocated(lambda retain=retain: gradients(fn(x, w), (x, w), retain_graph=retain))
    assert both[True] - both[False] >= 64 * 512 * 4


def test_gradients_are_eagers(compiled):
    inputs, fn = leaves(), compiled(loss)
    expected = gradients(loss(*inputs), inputs)
    for _ in range(2):
        torch.testing.assert_close(gradients(fn(*inputs), inputs), expected)


def test_a_retained_graph_keeps_its_values(compiled):
    inputs, fn = leaves(), compiled(loss)
    expected, result = gradients(loss(*inputs), inputs), fn(*inputs)
    for retain in (True, True, False):
        torch.testing.assert_close(gradients(result, inputs, retain_graph=retain), expected)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        gradients(result, inputs)


def test_what_somebody_holds_stays(compiled):
    inputs, fn = leaves(), compiled(loss)
    gradients(fn(*inputs), inputs)  # compiled to write over values
    result = fn(*inputs)
    held = segment_of(result).saved_tensors
    before = [each.clone() for each in held]
    torch.testing.assert_close(gradients(result, inputs), gradients(loss(*inputs), inputs))
    assert all(map(torch.equal, held, before))


def test_what_shares_memory_with_a_view_stays(compiled):
    inputs, fn = leaves(), compiled(loss)
    gradients(fn(*inputs), inputs)
    result = fn(*inputs)
    views = [each.detach()[:1] for each in segment_of(result).saved_tensors if each.dim()]
    before = [each.clone() for each in views]
    gradients(result, inputs)
    assert all(map(torch.equal, views, before))


def test_what_a_hook_keeps_stays(compiled):
    inputs, fn, packed = leaves(), compiled(loss), []

    def pack(value: torch.Tensor) -> torch.Tensor:
        packed.append((value, value.clone()))
        return value

    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            result = fn(*inputs)
        torch.testing.assert_close(gradients(result, inputs), gradients(loss(*inputs), inputs))
    assert packed and all(torch.equal(value, before) for value, before in packed)


def test_what_another_node_saves_stays(compiled):
    """Two of eager's calls may save one value; the second backward reads it."""
    inputs, fn = leaves(), compiled(lambda x, w: ((y := (x @ w)).logsumexp(1).sum(), y.sin().sum()))
    y = inputs[0] @ inputs[1]
    expected = [gradients(each, inputs, retain_graph=True) for each in (y.logsumexp(1).sum(), y.sin().sum())]
    for each, wanted in zip(fn(*inputs), expected, strict=True):
        torch.testing.assert_close(gradients(each, inputs, retain_graph=True), wanted)


def segment_of(result: torch.Tensor):
    node = result.grad_fn
    while not hasattr(node, "saved_tensors"):
        node = node.next_functions[0][0]
    return node


class Asks(torch.autograd.Function):
    """Appends to `answers` whether its saved value is owned by it alone."""

    @staticmethod
    def forward(ctx, x, value, answers):
        ctx.save_for_backward(value)
        ctx.answers = answers
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        values = [*ctx.saved_tensors]
        ctx.answers.append(are_owned(values, [0]))
        return gradient, None, None


def test_who_owns_a_value():
    x, answers = torch.ones(3, requires_grad=True), []

    def saved(keep: Callable[[torch.Tensor], object]) -> None:
        value = x.detach() * 2
        kept, result = keep(value), Asks.apply(x, value, answers)
        del value
        result.sum().backward()
        del kept

    saved(lambda value: None)
    saved(lambda value: value)
    saved(lambda value: value[:1])
    saved(lambda value: value.untyped_storage())
    saved(lambda value: Asks.apply(x, value, []))
    assert answers == [True, False, False, False, False]


def test_only_a_backend_that_says_so_writes_over():
    assert overwritable_of(aotgrad.aot_function(loss, "eager", options=OPTIONS)(*leaves())) == []
