"""A joint graph that is a part of an earlier one is what a trace would have given."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aotgrad
from aotgrad.ir import JointGraph
from aotgrad.pipeline import Executable
from tests.numerics.test_frozen import MODELS, Fold, frozen_in_turn, mlp, random_function


def described(joint: JointGraph) -> Any:
    """Segments (in which order gradients arrive, what eager saves) and ops, without what depends on their order."""
    graph = joint.module.graph
    called = [node for node in graph.nodes if node.op == "call_function"]
    outputs = zip(joint.signature.outputs, graph.output_node().args[0], strict=True)
    ops = Counter((str(node.target), str([a for a in node.args if not isinstance(a, torch.fx.Node)])) for node in called)
    flowing = {slot: node is not None for slot, node in outputs}
    facts = joint.static_inputs, joint.mutated_inputs
    return joint.segments, ops, flowing, joint.signature.tangents, facts


def newest(function: Any) -> JointGraph:
    executable = function.plans()[0].executable
    assert isinstance(executable, Executable)
    return executable.joint


def compiled(function: Callable, **options: Any) -> Callable:
    compile_it = aotgrad.aot_module if isinstance(function, nn.Module) else aotgrad.aot_function
    return compile_it(function, aotgrad.nop, options={"plan_limit": 100, "min_graph_ops": 0, **options})


class Norms(nn.Module):
    """Ops whose backward computes several gradients at once, of which eager asks for some."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.batch = nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6)
        self.group, self.layer, self.scale = nn.GroupNorm(2, 6), nn.LayerNorm(5), nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.group(self.batch(self.convolution(x)))) * self.scale


@pytest.mark.parametrize("name", [*MODELS, "norms"])
def test_the_joint_graph_is_that_of_a_trace(name: str) -> None:
    make, shape = {**MODELS, "norms": (Norms, (3, 4, 5))}[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape, requires_grad=True)
    used_again, before = compiled(model), aotgrad.counters["backwards_used_again"]
    used_again(x)
    for frozen in frozen_in_turn(model, x):
        traced, plans = compiled(model), len(used_again.plans())
        used_again(x), traced(x)
        if len(used_again.plans()) > plans and any(parameter.requires_grad for parameter in model.parameters()):
            assert described(newest(used_again)) == described(newest(traced)), frozen
    assert (aotgrad.counters["backwards_used_again"] > before + 5) == (name not in ("heads", "fold"))


@pytest.mark.parametrize("seed", range(20))
def test_the_joint_graph_of_random_functions(seed: int) -> None:
    choose = random.Random(seed)
    function, count = random_function(choose, 4), 4
    used_again = compiled(function)
    for number in range(6):
        flags = [number == 0 or choose.random() < 0.7 for _ in range(count)]
        leaves = [torch.randn(3, 3).requires_grad_(flag) for flag in flags]
        inputs = [leaf * 1 if choose.random() < 0.3 else leaf for leaf in leaves]
        traced, plans = compiled(function), len(used_again.plans())
        used_again(*inputs), traced(*inputs)
        if len(used_again.plans()) > plans:
            assert described(newest(used_again)) == described(newest(traced)), flags


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        both = all(ctx.needs_input_grad)
        return gradient * w * (2 if both else 1), gradient * x


def hooked(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y.register_hook(lambda gradient: gradient * (2 if w.requires_grad else 1))
    return y.sin()


def asks(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sin() if w.requires_grad else (x * w).cos()


def detaches(x: Tensor, w: Tensor) -> Tensor:
    return (x * w) if w.requires_grad else (x.detach() * w)


def folds(x: Tensor, w: Tensor) -> Tensor:
    return x[None].expand(2, 3, 3).transpose(0, 1) @ w


def overwrites(x: Tensor, w: Tensor) -> Tensor:
    return (x * 1).mul_(w).sin()


def two_results(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), (x * w).cos()


def masked(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x * 2, (3,), w[0], w[1])


OWN_RULES = [
    Doubled.apply,
    hooked,
    asks,
    detaches,
    folds,
    overwrites,
    two_results,
    masked,
    lambda x, w: F.linear(x, w).tanh(),
]


@pytest.mark.parametrize("function", OWN_RULES)
def test_functions_that_ask_what_requires_grad(function: Callable) -> None:
    """A gradient depends on what others there are, in the forward or in the backward: nothing is taken over then."""
    under_test = compiled(function)
    for flags in ((True, True), (True, False), (False, True), (True, True)):
        torch.manual_seed(0)
        leaves = [torch.randn(3, 3, requires_grad=flag) for flag in flags]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        found = []
        for call in (function, under_test):
            results = call(*leaves)
            results = results if isinstance(results, tuple) else (results,)
            with_grad = [result.sum() for result in results if result.requires_grad]
            gradients = torch.autograd.grad(sum(with_grad), wanted, allow_unused=True) if with_grad else ()
            found.append([*results, *gradients, *(result.requires_grad for result in results)])
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


def test_what_is_frozen_for_a_while_and_less_later() -> None:
    """A backward with more gradients than those before is traced, one with fewer is not."""
    model, x = mlp(), torch.randn(5, 4)
    under_test, used_again, plans = compiled(model), [], []
    for frozen in (2, 1, 2, 3, 0, 3):
        before = aotgrad.counters["backwards_used_again"]
        model.requires_grad_()
        for layer in [*model][::2][:frozen]:
            layer.requires_grad_(False)
        under_test(x).sum().backward()
        used_again.append(aotgrad.counters["backwards_used_again"] - before)
        plans.append(len(under_test.plans()))
    assert (used_again, plans) == ([0, 0, 0, 1, 0, 0], [1, 2, 2, 3, 4, 4])


@dataclass(frozen=True)
class Mine:
    """A pass that does nothing."""

    name: str = "mine"

    def apply(self, graph: Any) -> Any:
        return graph


@pytest.mark.parametrize("option", ["joint_passes", "forward_passes", "registered"])
def test_passes_of_the_users_see_every_graph(option: str) -> None:
    model, x, before = mlp(), torch.randn(5, 4), aotgrad.counters["backwards_used_again"]
    under_test = compiled(model, **({} if option == "registered" else {option: (Mine(),)}))
    if option == "registered":
        aotgrad.passes.register(Mine())
    try:
        for frozen in (False, True):
            model[0].requires_grad_(not frozen)
            under_test(x)
    finally:
        aotgrad.passes.unregister("mine")
    assert aotgrad.counters["backwards_used_again"] == before


def test_a_product_that_folds_its_batch_is_traced() -> None:
    model, x, before = Fold(), torch.randn(3, 2, 4, requires_grad=True), aotgrad.counters["backwards_used_again"]
    under_test = compiled(model)
    for frozen in (False, True):
        model.weight.requires_grad_(not frozen)
        assert torch.equal(under_test(x), model(x))
    assert aotgrad.counters["backwards_used_again"] == before
