"""Constants: what is computed at compile time, and that it stays what eager computes."""

from __future__ import annotations

import math

import pytest
import torch

import aotgrad
from aotgrad.passes import ConstantPropagation, DeadCodeElimination
from aotgrad.passes.constants import element_bytes, has_equal_elements
from tests.executables import executable_of
from tests.numerics.against_eager import assert_like_eager, leaf, plain
from tests.passes.graphs import aten, inference_graph, names, tidied


def test_what_numbers_make_is_computed_once():
    joint = executable_of(lambda x: x + torch.arange(3).exp().cumsum(0), "f32[3]").joint
    assert names(joint) == ["add"]


def test_what_is_picked_by_positions_is_computed_once_and_by_a_mask_is_not():
    places, mask = [[0], [2]], [True, False, True]
    picked = executable_of(lambda x: x + torch.arange(3).exp()[torch.tensor(places)], "f32[2, 1]").joint
    assert names(picked) == ["add"]
    masked = executable_of(lambda x: x + torch.arange(3)[torch.tensor(mask)].sum(), "f32[2]").joint
    assert "index" in names(masked)


def test_a_causal_mask_is_a_constant():
    def function(q, k, v):
        rows, columns = torch.arange(4)[:, None], torch.arange(4)[None, :]
        where = torch.zeros(1, 4, dtype=torch.long)
        allowed = (columns <= rows) & (where[0][rows] == where[0][columns])
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)

    joint = executable_of(function, *["f32[1, 1, 4, 8] requires_grad"] * 3).joint
    assert not {"le", "index", "bitwise_and", "where"}.intersection(names(joint))
    assert_like_eager(function, lambda: (leaf(1, 1, 4, 8), leaf(1, 1, 4, 8), leaf(1, 1, 4, 8)), "nop")


@pytest.mark.parametrize("pick", [lambda t, i: t.gather(0, i), lambda t, i: t[i]])
def test_a_constant_that_cannot_be_computed_raises_when_the_graph_runs(pick):
    function = lambda x: x + pick(torch.arange(2) * 2, torch.tensor([5]))  # noqa: E731
    compiled = torch.compile(function, backend="aotgrad_eager", options={"cache": False})
    with pytest.raises((IndexError, RuntimeError), match="index 5 is out of bounds"):
        compiled(torch.ones(1))


def test_what_is_made_of_numbers_alone_stays_if_nothing_is_computed_from_it():
    assert names(executable_of(lambda x: x + torch.ones(3), "f32[3]").joint) == ["ones", "add"]


def test_a_large_constant_is_computed_on_every_call():
    def build(graph, x):
        ones = graph.call_function(aten.ones.default, ([2, 3],))
        return graph.call_function(aten.mul.Tensor, (x, graph.call_function(aten.tril.default, (ones,))))

    for limit, left in ((6, ["mul"]), (5, ["ones", "tril", "mul"])):
        assert names(tidied(inference_graph(build), ConstantPropagation(limit), DeadCodeElimination())) == left


def test_equal_constants_are_one():
    def function(x):
        return x * torch.tensor([1.0, 2.0]) + torch.arange(1.0, 3.0).add(0) * x.sin()

    joint = executable_of(function, "f32[2]").joint
    assert [node.target for node in joint.module.graph.find_nodes(op="get_attr")] == ["_folded_0"]


@pytest.mark.parametrize("numbers", [[0.0, -0.0], [1, 2], [math.nan, math.nan]])
def test_constants_that_only_look_uniform(numbers):
    function = lambda x: x * (torch.tensor(numbers) * 1)  # noqa: E731
    assert "full" not in names(executable_of(function, "f32[2]").joint)
    assert_like_eager(function, lambda: (plain(2),), "interpreter")


def test_uniform_bits():
    assert has_equal_elements(torch.full((3,), 2.5))
    assert has_equal_elements(torch.full((3,), True))
    assert not has_equal_elements(torch.tensor([0.0, -0.0]))
    assert element_bytes(torch.tensor([1, 2], dtype=torch.int8)) == b"\x01\x02"
    assert element_bytes(torch.arange(4, dtype=torch.uint8).view(2, 2).t()) == b"\x00\x02\x01\x03"
    assert element_bytes(torch.empty(0)) == b""


def test_a_closed_over_tensor_is_no_constant():
    offset = torch.zeros(3)
    function = aotgrad.aot_function(lambda x: x + (offset + 1).exp(), aotgrad.nop)
    x = torch.randn(3)
    for value in (1.0, 2.0):
        offset.fill_(value)
        assert torch.equal(function(x), x + (offset + 1).exp())


def masks(x):
    mask = torch.ones(3, 3).tril()
    return mask, mask * 2, mask.view(9), x + mask


def test_a_constant_that_is_returned_is_a_new_tensor_on_every_call():
    compiled = aotgrad.aot_function(masks, aotgrad.nop)
    x = torch.randn(3, 3)
    compiled(x)[0].zero_()
    compiled(x)[1].zero_()
    for actual, expected in zip(compiled(x), masks(x), strict=True):
        assert torch.equal(actual, expected)

    def write(outputs, args):
        outputs[0].mul_(3)

    assert_like_eager(masks, lambda: (leaf(3, 3),), "eager", caller=write)


def test_a_constant_that_an_input_becomes():
    def function(x):
        x.copy_(torch.arange(3) * 2)
        return x + 1

    assert_like_eager(function, lambda: (plain(3),), "eager")


def test_a_constant_in_the_backward():
    assert_like_eager(lambda x: x * torch.tensor([1.0, 2.0, 3.0]) * torch.arange(3).exp(), lambda: (leaf(3),), "eager")


def test_autocast_does_not_reach_constants():
    def function(x):
        return x + torch.ones(2, 2) @ torch.ones(2, 2)

    assert_like_eager(
        function, lambda: (plain(2, 2),), "interpreter", around=lambda: torch.autocast("cpu", dtype=torch.bfloat16)
    )


def test_tensors_like_an_input_do_not_read_it():
    def function(x, y):
        return x * torch.full_like(y, 2) + y.new_zeros(3), torch.ones_like(y)

    (unread,) = executable_of(function, "f32[3]", "f32[3]").joint.module.graph.find_nodes(op="placeholder")[1:]
    assert not unread.users
    assert_like_eager(function, lambda: (leaf(3), plain(3)), "interpreter")


@pytest.mark.parametrize("like", [lambda x: x.t(), lambda x: x.expand(3, 2, 3), lambda x: x[:, ::2]])
def test_layouts_of_tensors_like_another(like):
    def function(x):
        return torch.zeros_like(like(x)), torch.ones_like(like(x)) + 1

    assert_like_eager(function, lambda: (leaf(2, 3),), "interpreter")


def test_zeros_like_a_gradient_that_is_not_there():
    """Without its tangent, a gradient that is `zeros_like` of it is `None`."""

    class Zeros(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return torch.zeros_like(gradient)

    def function(x, y):
        return Zeros.apply(x), y * 2

    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    aotgrad.aot_function(function, aotgrad.nop)(x, y)[1].sum().backward()
    assert x.grad is None
    assert_like_eager(function, lambda: (leaf(3), leaf(3)), "eager")


def test_symbolic_sizes_are_no_numbers():
    assert_like_eager(lambda x: x + torch.ones(x.size(0)).cumsum(0), lambda: (plain(4),), "interpreter", dynamic=True)


def test_random_numbers_are_no_constants():
    assert_like_eager(lambda x: x * torch.rand(3) * torch.bernoulli(torch.full((3,), 0.5)), lambda: (plain(3),), "eager")
