"""The autograd graph of a call, and the tensor that stands for it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from aotgrad.eager_calls.tape import Tape
from aotgrad.errors import EagerCallError


def tape_of(function, *leaves):
    return Tape(leaves, tuple(function(*leaves)))


def leaf(value=1.0):
    return torch.full((2,), value, requires_grad=True)


def test_a_tensor_holds_a_tape_as_long_as_its_memory_lives():
    tape = tape_of(lambda x: [x * 2], leaf())
    tensor, reference = tape.as_tensor().detach(), weakref.ref(tape)
    del tape
    gc.collect()
    assert Tape.of(tensor) is reference()
    del tensor
    gc.collect()
    assert reference() is None


def test_a_copy_holds_none():
    with pytest.raises(EagerCallError, match="a saved-tensor hook has copied"):
        Tape.of(tape_of(lambda x: [x * 2], leaf()).as_tensor().clone())


def test_which_inputs_get_a_gradient():
    tape = tape_of(lambda x, y, z: [x * y, y.exp(), z.detach()], leaf(), leaf(), leaf())
    assert [sorted(tape.inputs_reached(k)) for k in range(3)] == [[0, 1], [1], []]


def test_a_backward_that_raises_may_reach_all_inputs():
    class Raising(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, gradient):
            raise ZeroDivisionError

    assert tape_of(lambda x, y: [Raising.apply(x, y)], leaf(), leaf()).inputs_reached(0) == {0, 1}


def test_a_leaf_that_is_no_input_is_found():
    other = leaf()
    assert tape_of(lambda x: [x * other], leaf()).closes_over_a_leaf()
    assert not tape_of(lambda x: [x * other.detach()], leaf()).closes_over_a_leaf()


def test_gradients_of_some_results_with_a_history():
    x = leaf(2.0)
    tape = tape_of(lambda x: [x**2, x**3], x)
    (gradient,) = tape.gradients([None, torch.ones(2)], [0], create_graph=True)
    assert gradient.tolist() == [12, 12] and gradient.requires_grad
