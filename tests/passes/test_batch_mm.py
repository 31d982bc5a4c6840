"""Batched products: which are batched, and their values."""

from __future__ import annotations

import torch

import aotgrad
from aotgrad.passes import BatchMM
from tests.executables import executable_of
from tests.numerics.against_eager import assert_like_eager, leaf
from tests.passes.graphs import names

OPTIONS = {"joint_passes": [BatchMM()]}
SMALL = ["f32[4, 4] requires_grad"] * 4
ROUNDING = "a larger product may be summed in another order"


def products(function, *specs: str, batch: BatchMM | None = None) -> list[str]:
    joint = executable_of(function, *specs, options={"joint_passes": [batch or BatchMM()]}).joint
    return [name for name in names(joint) if name.endswith("mm")]


def test_it_is_off_by_default():
    assert names(executable_of(lambda x, y, w: ((x @ w) * (y @ w)).sin(), *SMALL[:3]).joint).count("bmm") == 0


def test_products_that_need_each_other_are_not_batched():
    assert products(lambda x, w: ((x @ w) @ w).sin() * 2, "f32[4, 4]", "f32[4, 4]") == ["mm", "mm"]


def test_products_with_one_right_operand_are_one():
    assert products(lambda x, y, w: (x @ w).sum() + (y @ w).sum(), "f32[2, 4]", "f32[3, 4]", "f32[4, 5]") == ["mm"]


def test_products_of_equal_shapes_are_one():
    function = lambda x, y, w, v: (x @ w).sin() + (y @ v).cos()  # noqa: E731
    assert products(function, *["f32[4, 4]"] * 4) == ["bmm"]
    assert products(function, "f32[4, 2]", "f32[4, 3]", "f32[2, 4]", "f32[3, 4]") == ["mm", "mm"]


def test_products_with_a_bias():
    shared = lambda b, x, y, w: torch.addmm(b, x, w).sum() + torch.addmm(b, y, w).sum()  # noqa: E731
    assert products(shared, "f32[5]", "f32[2, 4]", "f32[3, 4]", "f32[4, 5]") == ["addmm"]
    alike = lambda b, c, x, w: torch.addmm(b, x, w).sin() + torch.addmm(c, x, w).cos()  # noqa: E731
    assert products(alike, *["f32[4]"] * 2, *["f32[4, 4]"] * 2) == ["baddbmm"]
    scaled = lambda b, x, w: torch.addmm(b, x, w, beta=2).sin() + torch.addmm(b, x, w, beta=2).cos()  # noqa: E731
    assert products(scaled, "f32[4]", *["f32[4, 4]"] * 2).count("baddbmm") == 0
    matrix = lambda b, c, x, w: torch.addmm(b, x, w).sin() + torch.addmm(c, x, w).cos()  # noqa: E731
    assert products(matrix, *["f32[4, 4]"] * 4) == ["addmm", "addmm"]


def test_batched_products_of_equal_shapes_are_one():
    function = lambda x, y, w: torch.bmm(x, w).sin() + torch.bmm(y, w).cos()  # noqa: E731
    assert products(function, *["f32[2, 3, 3]"] * 3) == ["bmm"]
    assert products(function, "f32[2, 3, 3]", "f32[2, 3, 3]", "f32[2, 3, 4]") == ["bmm"]


def test_large_products_are_left_alone():
    function = lambda x, y, w: (x @ w).sin() + (y @ w).cos()  # noqa: E731
    assert products(function, *["f32[4, 4]"] * 3, batch=BatchMM(max_flops=63)) == ["mm", "mm"]
    assert products(function, *["f32[4, 4]"] * 3, batch=BatchMM(min_batch=3)) == ["mm", "mm"]


def test_outputs_and_gradients_are_tensors_of_their_own():
    assert products(lambda x, y, w: (x @ w, y @ w), *["f32[4, 4]"] * 3) == ["mm", "mm"]


def test_an_operand_that_comes_later_is_not_waited_for():
    assert products(lambda x, w: (x @ w).sin() + (x.exp() @ w).cos(), *["f32[4, 4]"] * 2) == ["mm", "mm"]


def test_gradients_of_different_outputs_stay_apart():
    """Only the first output is differentiated, so the gradients of the other's inputs are `None`."""

    def function(x, y, w, v):
        return (x * 2) @ w * 3, (y * 2) @ v * 3

    compiled = aotgrad.aot_function(function, aotgrad.nop, options=OPTIONS)
    args = [torch.randn(4, 4, requires_grad=True) for _ in range(4)]
    compiled(*args)[0].sum().backward()
    assert [arg.grad is None for arg in args] == [False, True, False, True]


def attention_like(x, wq, wk, wv):
    q, k, v = x @ wq, x @ wk, x @ wv
    return ((q @ k.t()).softmax(-1) @ v).sin()


def test_values_and_gradients():
    assert_like_eager(
        attention_like,
        lambda: tuple(leaf(4, 4) for _ in range(4)),
        "interpreter",
        values_close=ROUNDING,
        options=OPTIONS,
    )


def test_values_and_gradients_with_biases_and_batches():
    def function(x, y, w, v, b, c):
        first, second = torch.addmm(b, x, w), torch.addmm(b, y, w)
        third, fourth = torch.addmm(b, first, v).view(2, 2, 4), torch.addmm(c, second, w).view(2, 2, 4)
        left, right = torch.bmm(third, w.view(2, 4, 2)), torch.bmm(fourth, v.view(2, 4, 2))
        return left.sin() * right.cos()

    def make_args():
        return *(leaf(4, 4) for _ in range(4)), leaf(4), leaf(4)

    assert_like_eager(function, make_args, "eager", values_close=ROUNDING, options=OPTIONS)
    found = products(function, *["f32[4, 4]"] * 4, *["f32[4]"] * 2)
    assert found[:3] == ["addmm", "baddbmm", "bmm"]


def test_many_layers():
    def function(x, y, w, v):
        for _ in range(3):
            x, y = (x @ w).tanh() + (y @ v.t()), (y @ w).tanh() + (x @ v)
        return x.tanh(), y.tanh()

    def make_args():
        return tuple((torch.randn(4, 4) / 4).requires_grad_() for _ in range(4))

    assert_like_eager(function, make_args, "eager", values_close=ROUNDING, options=OPTIONS)
    assert products(function, *SMALL).count("bmm") > 2
