"""Graphs of functions of wrapper subclasses: they hold inner tensors only, and slots say whose parts these are."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import aotgrad
from aotgrad import printing
from aotgrad.backends.eager import compile_eager
from tests.golden.test_segments import page


def scaled(x, scale):
    return (x * scale).sin()


def inner(numbers):
    return torch.tensor(numbers)


def joint_text(plan):
    return printing.text(plan.executable.joint)


def test_inner_tensors(golden):
    f = aotgrad.aot_function(scaled, compile_eager)
    f(TwoTensor(inner([1.0, 2.0]), inner([3.0, 4.0])).requires_grad_(), inner([0.5, 2.0]).requires_grad_())
    (plan,) = f.plans()
    title = "A graph takes and returns the parts of wrapper subclasses."
    golden("joint/inner_tensors", page(title, scaled, "--- joint ---", joint_text(plan)))


def sine(x):
    return x.sin()


def test_a_variant_for_each_form_of_a_tangent(golden):
    f = aotgrad.aot_function(sine, compile_eager)
    x = TwoTensor(inner([1.0, 2.0]), inner([3.0, 4.0])).requires_grad_()
    f(x).backward(TwoTensor(torch.ones(2), torch.ones(2)))
    f(x).backward(torch.ones(2))
    like, plain = f.plans()
    title = "The gradient of a result may have another form than the result: here a plain tensor. Each form has a plan."
    texts = ["--- for a TwoTensor ---", joint_text(like), "--- for a plain tensor ---", joint_text(plain)]
    golden("joint/variants_of_a_tangent", page(title, sine, *texts))


def sine_of_a_result(x):
    y = x.exp()
    return y, y.sin()


def test_a_gradient_that_passes_a_result(golden):
    f = aotgrad.aot_function(sine_of_a_result, compile_eager)
    f(TwoTensor(inner([1.0, 2.0]), inner([3.0, 4.0])).requires_grad_())
    (plan,) = f.plans()
    title = (
        "The gradient of the second result passes the first one, so that its hooks see it. The first result is "
        "assembled from its parts before the second one gets its autograd node."
    )
    texts = ["--- joint ---", joint_text(plan), "--- runtime ---", plan.executable.source]
    golden("runtime/gradient_passes_a_wrapper", page(title, sine_of_a_result, *texts))


def attention(q, k, v):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")  # torch uses it
def test_attention_on_nested_tensors(golden):
    f = aotgrad.aot_function(attention, compile_eager)
    offsets = inner([0, 2, 5])
    f(*(torch.nested.nested_tensor_from_jagged(torch.ones(5, 2, 4), offsets).requires_grad_() for _ in range(3)))
    (plan,) = f.plans()
    title = "Attention on jagged nested tensors is one op of their values and offsets."
    golden("joint/attention_on_nested_tensors", page(title, attention, "--- joint ---", joint_text(plan)))
