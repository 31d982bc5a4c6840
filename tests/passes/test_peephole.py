"""Rewrites of one node: bit for bit what eager computes, and never another layout or another memory than a caller saw."""

from __future__ import annotations

import math

import pytest
import torch

import aotgrad
from aotgrad.passes import DeadCodeElimination, Peephole
from aotgrad.passes.peephole import WIDENING
from tests.executables import executable_of
from tests.numerics.against_eager import THREE_TERMS, assert_like_eager, leaf, plain
from tests.passes.graphs import aten, inference_graph, names, tidied

PASSES = (Peephole(), DeadCodeElimination())
SPECIAL = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3.4e38]


def between(*calls, like: torch.Tensor | None = None) -> list[str]:
    """What is left of calls between `exp` and `cos`, each of the one before; a call is (op, further arguments, kwargs)."""

    def build(graph, x):
        node = graph.call_function(aten.exp.default, (x,))
        for op, *rest in calls:
            arguments, kwargs = (*rest, (), {})[:2] if len(rest) < 2 else rest
            node = graph.call_function(op, (node, *arguments), kwargs)
        return graph.call_function(aten.cos.default, (node,))

    first, *kept, last = names(tidied(inference_graph(build, like), *PASSES))
    assert (first, last) == ("exp", "cos")
    return kept


@pytest.mark.parametrize(
    "calls",
    [
        [(aten.t.default,), (aten.t.default,)],
        [(aten.transpose.int, (0, 1)), (aten.transpose.int, (-1, -2))],
        [(aten.permute.default, ([1, 0],)), (aten.t.default,)],
        [(aten.permute.default, ([0, 1],))],
        [(aten.view.default, ([2, 3],))],
        [(aten.view.default, ([6],)), (aten.view.default, ([3, 2],)), (aten.view.default, ([2, 3],))],
        [(aten.expand.default, ([2, 3],))],
        [(aten.expand.default, ([-1, 3],))],
        [(aten.alias.default,)],
        [(aten.unsqueeze.default, (0,)), (aten.squeeze.dim, (0,))],
        [(aten.slice.Tensor, (0, 0, 9223372036854775807))],
        [(aten.mul.Tensor, (1,))],
        [(aten.mul.Tensor, (1.0,))],
        [(aten.mul.Tensor, (True,))],
        [(aten.div.Tensor, (1,))],
        [(aten.pow.Tensor_Scalar, (1,))],
        [(aten.sub.Tensor, (0,))],
        [(aten.sub.Tensor, (0.0,))],
        [(aten.add.Tensor, (-0.0,))],
        [(aten._to_copy.default, (), {"dtype": torch.float32})],
        [(aten._to_copy.default, (), {"dtype": torch.float64}), (aten._to_copy.default, (), {"dtype": torch.float32})],
    ],
)
def test_what_changes_nothing_goes(calls):
    assert between(*calls) == []


@pytest.mark.parametrize(
    "calls",
    [
        [(aten.t.default,)],
        [(aten.add.Tensor, (0,))],
        [(aten.add.Tensor, (0.0,))],
        [(aten.sub.Tensor, (-0.0,))],
        [(aten.sub.Tensor, (0.0,), {"alpha": -1})],
        [(aten.add.Tensor, (-0.0,), {"alpha": -1})],
        [(aten.mul.Tensor, (2,))],
        [(aten.mul.Tensor, (-1,))],
        [(aten.pow.Tensor_Scalar, (0,))],
        [(aten._to_copy.default, (), {"dtype": torch.bfloat16})],
        [(aten._to_copy.default, (), {"dtype": torch.bfloat16}), (aten._to_copy.default, (), {"dtype": torch.float32})],
        [(aten.slice.Tensor, (0, 0, 1))],
        [(aten.as_strided.default, ([2, 3], [3, 1], 0))],
        [(aten.t.default,), (aten.mul.Tensor, (1,)), (aten.as_strided.default, ([3], [1], 1))],
    ],
)
def test_what_changes_something_stays(calls):
    assert len(between(*calls)) == len(calls)


@pytest.mark.parametrize(
    ("calls", "left"),
    [
        ([(aten.view.default, ([6],)), (aten.view.default, ([3, 2],))], ["view"]),
        ([(aten.expand.default, ([1, 2, 3],)), (aten.expand.default, ([4, 2, 3],))], ["expand"]),
        ([(aten.permute.default, ([1, 0],)), (aten.transpose.int, (0, 1)), (aten.t.default,)], ["permute"]),
        ([(aten.t.default,), (aten.view.default, ([3, 2],))], ["t"]),
    ],
)
def test_neighbours_become_one(calls, left):
    assert between(*calls) == left


def test_integers_may_lose_a_zero():
    assert between((aten.to.dtype, (torch.int64,)), (aten.add.Tensor, (0,)))[-1:] != ["add"]
    executable = executable_of(lambda n: (n * n + 0) * n, "i64[3]")
    assert names(executable.joint) == ["mul", "mul"]


def test_complex_numbers_keep_their_products():
    joint = executable_of(lambda z: (z.exp() * 1 + 0).sin(), "c64[3]").joint
    assert names(joint) == ["exp", "mul", "add", "sin"]


def test_a_promotion_is_no_identity():
    def function(x, n):
        return ((x * x) * torch.ones((3,), dtype=torch.float64)).sin() + n / 1

    joint = executable_of(function, "f32[3]", "i64[3]").joint
    assert names(joint).count("mul") == 2
    assert "div" in names(joint)


def test_a_broadcast_is_no_identity():
    assert "mul" in names(executable_of(lambda x: (x.exp() * torch.ones(2, 3)).sin(), "f32[3]").joint)


def test_an_expanded_tensor_is_copied_to_another_layout():
    joint = executable_of(lambda x: (x.exp().expand(2, 3) * 1).view(-1).sin(), "f32[3]").joint
    assert "mul" in names(joint)


FUNCTIONS = {
    "mul": lambda x: (x * x * 1).sin(),
    "div": lambda x: (x * x / 1).sin(),
    "pow": lambda x: ((x * 3) ** 1).sin(),
    "add": lambda x: (x * 3 + 0) * 5,
    "add negative zero": lambda x: (x * 3 + -0.0) * 5,
    "sub": lambda x: (x * 3 - 0) * 5,
    "sub negative zero": lambda x: (x * 3 - -0.0) * 5,
    "views": lambda x: x.exp().view(2, -1).t().t().reshape(-1).expand(10).sin(),
    "casts": lambda x: (x * 3).double().to(x.dtype) * 5,
    "narrow casts": lambda x: (x * 3).half().float().to(x.dtype) * 5,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_are_eagers(name, dtype):
    x = torch.tensor(SPECIAL, dtype=dtype)
    expected = FUNCTIONS[name](x)
    actual = aotgrad.aot_function(FUNCTIONS[name], aotgrad.nop)(x)
    assert torch.equal(torch.signbit(actual), torch.signbit(expected))
    assert torch.equal(actual.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert_like_eager(FUNCTIONS[name], lambda: (leaf(10, dtype=dtype),), "eager")


@pytest.mark.parametrize("narrow", WIDENING)
def test_widening_loses_nothing(narrow):
    """Every value of a 16-bit type, and random ones of a 32-bit type, comes back from each wider one."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16) if narrow.itemsize == 2 else None
    values = bits.view(narrow) if bits is not None else torch.randint(-(2**31), 2**31 - 1, (10_000,)).int().view(narrow)
    for wide in WIDENING[narrow]:
        back = values.to(wide).to(narrow)
        same = (back == values) & (torch.signbit(back) == torch.signbit(values))
        assert bool((same | values.isnan()).all())


def test_outputs_are_fresh_and_keep_their_strides():
    def function(x):
        y = x * 1
        return y, x.t().t(), (x * 2).t().t(), y.view(6).view(2, 3)

    def write(outputs, args):
        outputs[2].mul_(3)

    for make in (plain, leaf):
        assert_like_eager(function, lambda make=make: (make(2, 3),), "eager", caller=write, gradients_close=THREE_TERMS)


def test_what_the_caller_changes_was_not_saved():
    """Eager saves `x * 1`, which is no input; saving the input instead would fail after this write."""

    def write(outputs, args):
        with torch.no_grad():
            args[1].mul_(2)

    assert_like_eager(
        lambda x, y: x * (y * 1),
        lambda: (leaf(3), plain(3)),
        "eager",
        caller=write,
        partition_fn=aotgrad.default_partition,
    )


def test_gradients_are_no_inputs():
    """`x * 1` has the tangent as its gradient; eager's is a tensor of its own."""
    x = torch.randn(3, requires_grad=True)
    tangent = torch.ones(3)
    (gradient,) = torch.autograd.grad(aotgrad.aot_function(lambda x: x * 1, aotgrad.nop)(x), x, tangent)
    assert gradient.untyped_storage().data_ptr() != tangent.untyped_storage().data_ptr()


def test_views_that_count_from_the_start_of_the_storage():
    """The input is the middle of a storage, so a copy of it and the input differ in what `as_strided` shows."""

    def function(x):
        return ((x * 1).as_strided((2,), (1,), 1) + 1).sin(), x[1:].as_strided((2,), (1,), 0) * 1

    assert_like_eager(function, lambda: (torch.randn(10)[3:8],), "eager")
