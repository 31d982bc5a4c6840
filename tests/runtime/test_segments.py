"""The graph of each segment: its inputs, its computation, and the parts left to other segments."""

from __future__ import annotations

import torch

from aotgrad.runtime.segments import segment_halves
from aotgrad.slots import Saved, SegmentBoundary, Tangent, UserOutput
from tests.executables import executable_of


def heads(x, w):
    h = x.tanh()
    return h @ w, h.exp()


SPECS = ["f32[2, 2] requires_grad", "f32[2, 2] requires_grad"]


def targets(half) -> list[str]:
    return [node.target.__name__ for node in half.module.graph.nodes if node.op == "call_function"]


def test_a_single_segment_is_the_backward_itself():
    executable = executable_of(lambda x, w: x @ w, *SPECS)
    (half,) = segment_halves(executable.partition.backward, executable.joint.segments)
    assert half is executable.partition.backward


def test_each_segment_has_its_own_nodes_tangents_and_saved_values():
    exp, product, trunk = executable_of(heads, *SPECS).schedule.segments
    assert targets(exp)[-1:] == ["mul.Tensor"]
    assert sorted(targets(product)) == ["mm.default", "mm.default", "t.default", "t.default"]
    assert targets(trunk) == ["tanh_backward.default"]
    assert exp.signature.tangents == (Tangent(UserOutput(1)),)
    assert product.signature.tangents == (Tangent(UserOutput(0)),)
    assert trunk.signature.tangents == (Tangent(SegmentBoundary(0)),)
    assert set(product.signature.saved) == {Saved("tanh"), Saved("primals_2")}
    assert set(trunk.signature.saved) == {Saved("tanh")}


def test_a_tangent_that_nothing_depends_on_stays_an_input():
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return torch.ones_like(gradient)

    *_, last = executable_of(lambda x: (Dropped.apply(x), x.exp()), "f32[2] requires_grad").schedule.segments
    assert last.signature.tangents == (Tangent(UserOutput(0)),)
