"""The backward appended to the forward: its layout, its values, and where its nodes come from."""

from __future__ import annotations

import pytest
import torch
import torch.fx as fx

import aotgrad
from aotgrad.errors import CaptureError
from aotgrad.graph.source_lines import source_line
from aotgrad.inspect.specs import parse_arguments
from aotgrad.slots import Gradient, IntermediateBase, Primal, SegmentBoundary, Tangent, UpdatedInput, UserOutput
from tests.executables import executable_of, results_of


def layer(x, w, b):
    h = torch.addmm(b, x, w)
    return torch.tanh(h)


LAYER = ["f32[2, 3] requires_grad", "f32[3, 4] requires_grad", "f32[4]"]


def test_the_joint_graph_computes_results_and_gradients():
    joint = executable_of(layer, *LAYER).joint
    args = parse_arguments(LAYER)
    output = layer(*args)
    tangent = torch.randn_like(output)
    expected = torch.autograd.grad(output, args[:2], tangent)
    with torch.no_grad():
        found = fx.Interpreter(joint.module).run(*args, tangent)
    torch.testing.assert_close(found[0], output)
    torch.testing.assert_close(tuple(found[1:3]), expected)
    assert found[3] is None


def test_every_result_that_requires_grad_has_a_tangent():
    def function(x, y):
        y.mul_(x)
        z = x.exp()
        return x.sin(), z[0], z[1], x.detach() * 2

    signature = executable_of(function, "f32[2] requires_grad", "f32[2]").joint.signature
    results = (UpdatedInput(1), UserOutput(0), UserOutput(3), IntermediateBase(0))
    assert signature.forward_results == results
    assert signature.tangents == tuple(Tangent(slot) for slot in results if slot != UserOutput(3))


def test_a_backward_of_one_segment_has_one_gradient_a_primal():
    joint = executable_of(lambda x, y: x * 2, "f32[2] requires_grad", "f32[2] requires_grad").joint
    assert joint.signature.gradients == (Gradient(Primal(0)), Gradient(Primal(1)))
    (segment,) = joint.segments
    assert (segment.tangents, segment.gradients) == ((Tangent(UserOutput(0)),), (Gradient(Primal(0)),))


def test_heads_and_trunk_are_segments():
    def function(x):
        h = x.tanh()
        return h.sin(), h.cos()

    joint = executable_of(function, "f32[2] requires_grad").joint
    cos, sin, trunk = joint.segments
    assert (cos.tangents, cos.gradients) == ((Tangent(UserOutput(1)),), (Gradient(SegmentBoundary(0), 0),))
    assert (sin.tangents, sin.gradients) == ((Tangent(UserOutput(0)),), (Gradient(SegmentBoundary(0), 1),))
    assert (trunk.tangents, trunk.gradients) == ((Tangent(SegmentBoundary(0)),), (Gradient(Primal(0), 2),))


def test_terms_that_are_not_the_first_of_a_sum_are_passed_on_one_by_one():
    signature = executable_of(lambda x: (x * x, x.sin()), "f32[2] requires_grad").joint.signature
    assert signature.gradients == (Gradient(Primal(0), 0), Gradient(Primal(0), 1), Gradient(Primal(0), 1, term=1))


def test_a_custom_function_that_may_get_zeros_is_a_segment_by_itself():
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, one, other):
            return one * 2 + other * 3

    def function(x):
        one, other = Both.apply(x.sin())
        return one.exp(), other.exp()

    segments = executable_of(function, "f32[2] requires_grad").joint.segments
    assert [(len(segment.tangents), segment.materialize) for segment in segments] == [
        (1, False),
        (1, False),
        (2, True),
        (1, False),
    ]
    assert not any(s.materialize for s in executable_of(lambda x: sum(Both.apply(x)), "f32[2] requires_grad").joint.segments)


def test_hooks_of_an_input_are_no_part_of_the_graph():
    def function(x):
        x.register_hook(lambda gradient: gradient * 10)
        return x.sin(), x.cos()

    executable = executable_of(function, "f32[2] requires_grad")
    assert len(executable.joint.segments) == 2
    assert "10" not in executable.joint.module.code
    assert "primals_1.register_hook(hook_0)" in executable.source


def test_a_backward_node_carries_the_line_of_its_forward():
    joint = executable_of(layer, *LAYER).joint
    lines = {node.name: source_line(node.meta.get("stack_trace")) for node in joint.module.graph.nodes}
    output, *gradients = [node for node in results_of(joint) if node is not None]
    assert lines[output.name] == "return torch.tanh(h)"
    assert {lines[gradient.name] for gradient in gradients} == {"h = torch.addmm(b, x, w)"}
    tanh_backward = next(name for name in lines if name.startswith("tanh_backward"))
    assert lines[tanh_backward] == "return torch.tanh(h)"


def test_forward_and_backward_nodes_share_a_sequence_number():
    nodes = executable_of(layer, *LAYER).joint.module.graph.nodes
    numbers = {node.name: node.meta.get("seq_nr") for node in nodes}
    assert numbers["tanh"] == numbers["tanh_backward"] != numbers["addmm"]


def test_a_leaf_that_is_no_argument_is_refused():
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(CaptureError, match=r"shape \(3,\) that requires grad is no argument"):
        aotgrad.aot_function(lambda x: x * weight, aotgrad.nop)(torch.ones(3))


def test_nothing_that_requires_grad_gives_an_inference_graph():
    joint = executable_of(layer, "f32[2, 3]", "f32[3, 4]", "f32[4]").joint
    assert not joint.differentiable
    assert joint.signature.outputs == (UserOutput(0),)


def test_static_and_mutated_inputs_are_told():
    def function(buffer, x):
        buffer.add_(x)

    joint = executable_of(function, "f32[2]", "f32[2]", num_params_buffers=1).joint
    assert (joint.static_inputs, joint.mutated_inputs) == ({0}, {0})
