"""Calls with only distinct tensors take a fast path to their plan. It must find the same plan as the full path."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import aotgrad

pytestmark = pytest.mark.usefixtures("implementation")


def double(x):
    return x * 2


class SeenOps(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def after_two_calls(function, *args):
    """A compiled function that has already found its plan."""
    compiled = aotgrad.aot_function(function, aotgrad.nop)
    compiled(*args)
    compiled(*args)
    assert [plan.hits for plan in compiled.plans()] == [1]
    return compiled


@pytest.mark.parametrize("mode", [SeenOps, SeenFunctions, forward_ad.dual_level])
def test_who_watches_every_op_sees_the_function_itself(mode):
    x = torch.ones(2)
    compiled = after_two_calls(double, x)
    with mode():
        assert torch.equal(compiled(x), double(x))
    assert [plan.hits for plan in compiled.plans()] == [1]


@pytest.mark.parametrize("transform", [torch.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())])
def test_inside_a_transform_the_function_itself_runs(transform):
    x = torch.ones(2)
    compiled = after_two_calls(double, x)
    seen = []

    def call(wrapped):
        seen.append(compiled(x))  # objects outside the transform are guarded, too
        return compiled(wrapped)

    assert torch.equal(transform(call)(x), transform(double)(x))
    assert torch.equal(seen[0], double(x))
    assert [plan.hits for plan in compiled.plans()] == [1]


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_inside_a_jit_trace_the_function_itself_is_traced():
    x = torch.ones(2)
    compiled = after_two_calls(double, x)
    traced = torch.jit.trace(lambda y: compiled(y) + compiled(x), (x.clone(),), check_trace=False)
    assert torch.equal(traced(torch.full((2,), 3.0)), torch.full((2,), 8.0))
    assert [plan.hits for plan in compiled.plans()] == [1]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_another_mode_has_another_plan(mode):
    x = torch.ones(2, requires_grad=True)
    compiled = after_two_calls(double, x)
    for _ in range(2):
        with mode():
            actual, expected = compiled(x), double(x)
        assert (actual.requires_grad, actual.is_inference()) == (expected.requires_grad, expected.is_inference())
    assert [plan.hits for plan in compiled.plans()] == [1, 1]


@pytest.mark.parametrize("other", [2, 2.0, torch.ones(3), [torch.ones(2)], None])
def test_an_argument_of_another_kind_is_seen(other):
    compiled = after_two_calls(lambda x: x, torch.ones(2))
    assert compiled(other) == other if not isinstance(other, torch.Tensor) else torch.equal(compiled(other), other)
    assert sorted(plan.hits for plan in compiled.plans()) == [0, 1]


def test_a_tensor_that_is_passed_twice_is_seen():
    def function(x, y):
        x.add_(1)
        return x * y

    compiled = after_two_calls(function, torch.ones(2), torch.ones(2))
    x, expected = torch.ones(2), torch.ones(2)
    assert torch.equal(compiled(x, x), function(expected, expected))


def test_a_registered_pass_makes_another_plan():
    compiled = after_two_calls(double, torch.ones(2))
    new = aotgrad.passes.register(aotgrad.passes.DeadCodeElimination())
    try:
        compiled(torch.ones(2))
    finally:
        aotgrad.passes.unregister(new.name)
    assert len(compiled.plans()) == 2


def test_a_cleared_function_compiles_again():
    compiled = after_two_calls(double, torch.ones(2))
    aotgrad.clear_cache(compiled)
    compiled(torch.ones(2))
    assert [plan.hits for plan in compiled.plans()] == [0]


def test_a_module_sees_what_was_assigned():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    compiled, x = aotgrad.aot_module(model, aotgrad.nop), torch.ones(1, 2)
    model.eval()
    for _ in range(3):
        compiled(x)
    model[0].weight = nn.Parameter(torch.zeros(2, 2))
    assert torch.equal(compiled(x), model(x))
    model.train()
    compiled(x)
    assert sorted(plan.hits for plan in compiled.plans()) == [0, 3]


@pytest.mark.parametrize("grad", [True, False])
def test_an_argument_that_dies_is_freed_during_the_call(grad):
    alive = []

    def note(graph, _):
        run = graph.forward

        def boxed(args):
            values = tuple(args)
            args.clear()
            references = [weakref.ref(value) for value in values]
            first = run(*values)
            del values
            alive.append([reference() is not None for reference in references])
            return first

        boxed._boxed_call = True
        return boxed

    compiled = aotgrad.aot_function(lambda x, w: (x + 1) * w, note)
    w = torch.ones(2, requires_grad=grad)
    for _ in range(3):
        compiled(torch.ones(2), w)
    assert alive[1:] == [[grad, True]] * 2 if grad else [[False, True]] * 2


def test_a_backward_after_a_gradient_of_leaves_has_the_same_gradients():
    compiled = aotgrad.aot_function(lambda x, w: (x * w).sin(), aotgrad.nop)
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    for _ in range(3):
        both = torch.autograd.grad(compiled(x, w).sum(), (x, w))
        (one,) = torch.autograd.grad(compiled(x, w).sum(), w)
        x.grad = w.grad = None
        compiled(x, w).sum().backward()
        assert torch.equal(both[0], x.grad) and torch.equal(both[1], w.grad) and torch.equal(one, w.grad)
        compiled(x, w).sum().backward(inputs=[x])
        assert torch.equal(2 * both[0], x.grad) and torch.equal(both[1], w.grad)
