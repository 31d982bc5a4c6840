"""Losses of a function and of its derivatives together: eager's number of products, its gradients, errors and memory.

In each test the function is warm: the third call of a plan makes what later calls use. Products are counted by the profiler,
since a compiled function runs eagerly under a dispatch mode.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aotgrad.runtime import inner_values
from aotgrad.runtime.autograd import is_segment

from .against_eager import compiled
from .test_custom_ops import sine as custom_sine

PRODUCTS = {f"aten::{name}" for name in ("addmm", "baddbmm", "bmm", "convolution", "convolution_backward", "mm")}
WAYS = {"nop": False, "dynamo": True}
"""The compilers, and whether sizes are symbolic."""

Inputs = list[Tensor]
Step = Callable[[Callable, Inputs], Sequence[Tensor | None]]


@pytest.fixture(autouse=True)
def stand_ins_for_small_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_values, "MIN_ELEMENTS", 1)


def products_in(step: Step, function: Callable, inputs: Inputs) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        step(function, inputs)
    return sum(event.name in PRODUCTS for event in profile.events())


def leaves(seed: int = 0) -> Inputs:
    """Five rows of three coordinates, and the weights of three layers."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((5, 3), (3, 4), (4, 4), (4, 1))
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


def layers(activation: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return activation(activation(x @ a) @ b) @ c

    return function


def attention(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    hidden = F.layer_norm(x @ a, (4,))
    return F.silu((torch.softmax((hidden @ b) @ hidden.mT, -1) @ hidden) + hidden) @ c


def recurrent(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    hidden = torch.zeros_like(x @ a)
    for _ in range(3):
        hidden = torch.tanh(x @ a + hidden @ b)
    return hidden @ c


def convolved(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return F.softplus(F.conv1d(F.softplus(x @ a)[:, None], b[:, None, :2])).mean(2) @ c


FUNCTIONS = {
    **{activation.__name__: layers(activation) for activation in (torch.tanh, torch.relu, F.softplus)},
    "attention": attention,
    "convolution": convolved,
    "recurrent": recurrent,
}


def slope(function: Callable, inputs: Inputs) -> tuple[Tensor, Tensor]:
    y = function(*inputs)
    return y, *torch.autograd.grad(y.sum(), inputs[0], create_graph=True)


def all_gradients(loss: Tensor, inputs: Inputs) -> Sequence[Tensor | None]:
    return torch.autograd.grad(loss, inputs, allow_unused=True)


def value_and_derivative(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    """The training of energies and forces."""
    y, force = slope(function, inputs)
    return all_gradients(force.square().sum() + y.square().sum(), inputs)


def derivative(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    _, force = slope(function, inputs)
    return all_gradients((force.norm(dim=1) - 1).square().mean(), inputs)


def penalty_of_a_critic(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    x, *weights = inputs
    _, force = slope(function, inputs)
    scores = function(x.detach() + 1, *weights).mean() - function(x.detach() - 1, *weights).mean()
    return all_gradients(scores + (force.norm(dim=1) - 1).square().mean(), weights)


def penalty_of_gradients(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    loss = function(*inputs).square().mean()
    gradients = torch.autograd.grad(loss, inputs[1:], create_graph=True)
    return all_gradients(loss + sum(gradient.square().sum() for gradient in gradients), inputs[1:])


def product_with_the_hessian(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    gradients = torch.autograd.grad(function(*inputs).square().mean(), inputs[1:], create_graph=True)
    return all_gradients(torch.stack([gradient.sum() for gradient in gradients]).sum(), inputs[1:])


def learned_start(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    """Two inner steps of MAML."""
    x, *weights = inputs
    for _ in range(2):
        gradients = torch.autograd.grad(function(x, *weights).square().mean(), weights, create_graph=True)
        weights = [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients, strict=True)]
    return all_gradients(function(x + 1, *weights).square().mean(), inputs[1:])


def all_derivatives(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    y, force = slope(function, inputs)
    (second,) = torch.autograd.grad(force.square().sum(), inputs[0], create_graph=True)
    return all_gradients(second.square().sum() + force.sin().sum() + y.square().sum(), inputs)


def third_derivative(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    _, force = slope(function, inputs)
    (second,) = torch.autograd.grad(force.square().sum(), inputs[0], create_graph=True)
    return all_gradients(second.square().sum(), inputs)


STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (
        *(value_and_derivative, derivative, penalty_of_a_critic, penalty_of_gradients),
        *(product_with_the_hessian, learned_start, third_derivative, all_derivatives),
    )
}
CASES = [
    *itertools.product(("tanh", "relu", "softplus"), STEPS),
    *itertools.product(("attention", "recurrent"), ("value_and_derivative", "all_derivatives")),
    ("convolution", "value_and_derivative"),  # a call of `convolution_backward` is one product or two
]


def warm(step: Step, function: Callable) -> None:
    for _ in range(3):
        step(function, leaves())


@pytest.mark.parametrize(
    ("name", "of", "way"), [*((*case, "nop") for case in CASES), *((*case, "dynamo") for case in CASES[::7])]
)
def test_no_more_products_than_in_eager(name: str, of: str, way: str) -> None:
    function, step = FUNCTIONS[name], STEPS[of]
    under_test = compiled(function, way, dynamic=WAYS[way])
    warm(step, under_test)
    assert products_in(step, under_test, leaves()) <= products_in(step, function, leaves())
    for ours, eagers in zip(step(under_test, leaves(1)), step(function, leaves(1)), strict=True):
        assert (ours is None) == (eagers is None)
        if ours is not None and eagers is not None:
            torch.testing.assert_close(ours, eagers, rtol=1e-10, atol=1e-10)


# -- what a node with stand-ins does besides


def through_stand_ins(way: str) -> Callable:
    """A compiled function whose next call makes stand-ins."""
    under_test = compiled(FUNCTIONS["tanh"], way, dynamic=WAYS.get(way, False))
    warm(value_and_derivative, under_test)
    node = under_test(*leaves()).grad_fn
    assert is_segment(node) and node.stand_ins == 2
    return under_test


def one_after_the_other(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    y, force = slope(function, inputs)
    force.square().sum().backward(retain_graph=True)
    y.square().sum().backward()
    return [each.grad for each in inputs]


def the_last_layer_afterwards(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    """In eager, a loss of the derivative runs no op after the last activation."""
    y, force = slope(function, inputs)
    force.square().sum().backward()
    return torch.autograd.grad(y.sum(), inputs[3])


def twice(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    y, force = slope(function, inputs)
    loss = force.square().sum() + y.square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return [each.grad for each in inputs]


def one_gradient_at_a_time(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    y, force = slope(function, inputs)
    loss = force.square().sum() + y.square().sum()
    return [torch.autograd.grad(loss, each, retain_graph=True)[0] for each in inputs]


def two_derivatives(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    y, force = slope(function, inputs)
    (other,) = torch.autograd.grad(y.square().sum(), inputs[2], create_graph=True)
    return all_gradients(force.square().sum() + other.sin().sum() + y.square().sum(), inputs)


def differentiated_again(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    y, force = slope(function, inputs)
    gradients = torch.autograd.grad(force.square().sum() + y.square().sum(), inputs, create_graph=True)
    return all_gradients(torch.stack([gradient.square().sum() for gradient in gradients]).sum() + force.sum(), inputs)


def batched(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    y, force = slope(function, inputs)
    losses = torch.stack([force.square().sum() + y.sum(), y.square().sum() + force.sum()])
    return torch.autograd.grad(losses, inputs, torch.eye(2, dtype=torch.float64), is_grads_batched=True)


def with_hooks(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    seen: list[Tensor] = []
    y, force = slope(function, inputs)
    y.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
    return *all_gradients(force.square().sum() + y.square().sum(), inputs), *seen


def with_saved_tensor_hooks(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor):
        return value_and_derivative(function, inputs)


def without_the_result(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    y, force = slope(function, inputs)
    loss = y.square().sum()
    del y
    return all_gradients(force.square().sum() + loss, inputs)


def with_compiled_autograd(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
    y, force = slope(function, inputs)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aotgrad_eager")):
        (force.square().sum() + y.square().sum()).backward()
    return [each.grad for each in inputs]


USES: list[Step] = [
    *(one_after_the_other, the_last_layer_afterwards, twice, one_gradient_at_a_time, two_derivatives),
    *(differentiated_again, batched, with_hooks, with_saved_tensor_hooks, without_the_result, with_compiled_autograd),
]


@pytest.mark.filterwarnings("ignore:.*Compiled autograd:UserWarning")
@pytest.mark.parametrize("way", [*WAYS, "aot_inductor"])
def test_whatever_is_done_with_the_result_and_the_derivative(way: str) -> None:
    under_test = through_stand_ins(way)
    for use in USES if way in WAYS else USES[:5]:
        for _ in range(2):
            pairs = zip(use(under_test, leaves(1)), use(FUNCTIONS["tanh"], leaves(1)), strict=True)
            for ours, eagers in pairs:
                assert (ours is None) == (eagers is None), use.__name__
                torch.testing.assert_close(ours, eagers, rtol=1e-9, atol=1e-9, msg=use.__name__)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos()


@pytest.mark.parametrize("sine", [Sine.apply, custom_sine], ids=["autograd function", "custom op"])
@pytest.mark.parametrize("way", ["nop", "dynamo", "aot_inductor"])
def test_values_that_python_nodes_have_computed(sine: Callable, way: str) -> None:
    def function(x, a, b, c):
        return sine(sine(x @ a) @ b) @ c

    under_test = compiled(function, way)
    warm(value_and_derivative, under_test)
    pairs = zip(value_and_derivative(under_test, leaves(1)), value_and_derivative(function, leaves(1)), strict=True)
    for ours, eagers in pairs:
        torch.testing.assert_close(ours, eagers, rtol=1e-9, atol=1e-9)


def test_the_masks_are_those_of_the_forward() -> None:
    def function(x, a, b, c):
        return F.dropout((x @ a).tanh(), 0.5) @ b @ c

    under_test = compiled(function, "nop")
    warm(value_and_derivative, under_test)
    found = []
    for each in (under_test, function):
        torch.manual_seed(0)
        found.append(value_and_derivative(each, leaves()))
    torch.testing.assert_close(*found)


def test_a_weight_that_was_changed_raises_as_in_eager() -> None:
    for function in (FUNCTIONS["tanh"], through_stand_ins("nop")):
        inputs = leaves()
        y, force = slope(function, inputs)
        with torch.no_grad():
            inputs[2].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (force.square().sum() + y.square().sum()).backward()
    assert value_and_derivative(function, leaves())[0] is not None


def test_a_second_backward_raises_as_in_eager() -> None:
    for function in (FUNCTIONS["tanh"], through_stand_ins("nop")):
        y, force = slope(function, leaves())
        (force.square().sum() + y.square().sum()).backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.sum().backward()


def test_a_node_with_stand_ins_is_freed_without_the_garbage_collector() -> None:
    function = through_stand_ins("nop")
    gc.disable()
    try:
        inputs = leaves()
        y, force = slope(function, inputs)
        alive = [weakref.ref(y), weakref.ref(force), weakref.ref(inputs[1])]
        (force.square().sum() + y.square().sum()).backward()
        del y, force, inputs
        assert [each() for each in alive] == [None, None, None]
    finally:
        gc.enable()


def test_there_are_no_stand_ins_without_such_a_loss() -> None:
    function = compiled(FUNCTIONS["tanh"], "nop")
    for step in (derivative, lambda function, inputs: function(*inputs).sum().backward() or (), derivative):
        warm(step, function)
    assert function(*leaves()).grad_fn.stand_ins == 0


def test_a_backward_in_segments_has_none() -> None:
    function = compiled(FUNCTIONS["tanh"], "nop", options={"grad_segments": 2})
    warm(value_and_derivative, function)
    pairs = zip(value_and_derivative(function, leaves(1)), value_and_derivative(FUNCTIONS["tanh"], leaves(1)), strict=True)
    for ours, eagers in pairs:
        torch.testing.assert_close(ours, eagers, rtol=1e-10, atol=1e-10)
    assert function(*leaves()).grad_fn.stand_ins == 0


@pytest.mark.parametrize(("rows", "count"), [(5, 0), (20_000, 2)])
def test_only_large_values_have_stand_ins(rows: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For small ones, they take longer than products."""
    monkeypatch.undo()

    def larger(function: Callable, inputs: Inputs) -> Sequence[Tensor | None]:
        return value_and_derivative(function, [inputs[0].detach().repeat(rows // 5, 1).requires_grad_(), *inputs[1:]])

    for way, dynamic in WAYS.items():
        under_test = compiled(FUNCTIONS["tanh"], way, dynamic=dynamic)
        node = under_test(*leaves()).grad_fn
        before = vars(type(node)).get("apply")
        warm(lambda function, inputs: larger(function, inputs), under_test)
        node = under_test(leaves()[0].detach().repeat(rows // 5, 1).requires_grad_(), *leaves()[1:]).grad_fn
        assert is_segment(node) and node.stand_ins == count
        if not count:
            assert vars(type(node)).get("apply") is before or dynamic
        torch.testing.assert_close(larger(under_test, leaves()), larger(FUNCTIONS["tanh"], leaves()), rtol=1e-9, atol=1e-9)
