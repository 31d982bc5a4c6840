"""What is learnt of a call, and how it runs."""

from __future__ import annotations

import pytest
import torch
import torch.utils._pytree as pytree

from aotgrad.eager_calls.call import CALLS, EagerCall, Invocation
from aotgrad.eager_calls.forms import DenseForm, Structure
from aotgrad.eager_calls.tape import Tape
from aotgrad.errors import EagerCallError


def invocation(function, *args, needs):
    leaves, spec = pytree.tree_flatten((args, {}))
    constants = tuple((k, value) for k, value in enumerate(leaves) if not isinstance(value, torch.Tensor))
    return Invocation(function, "function", "a test", spec, constants, tuple(range(len(needs))), needs, True, ())


def test_forms_gradients_and_saved_values_are_learnt():
    def function(x, number, y):
        return x.exp() * number, y.long()

    x, y = torch.ones(2, 3), torch.ones(3).double()
    call = EagerCall.learn(invocation(function, x, 2, y, needs=(True, True)), [x, y])
    assert [str(form) for form in call.outputs] == ["float32[2, 3]", "int64[3]"]
    assert call.differentiable == (True, False)
    assert call.gradients == (frozenset({0}), frozenset())
    assert (call.wanted((True, False)), call.wanted((False, False))) == ([0], [])
    assert (call.kept_inputs, call.kept_outputs) == ((), ())  # `exp` saves its own result, which is no result of the call
    assert CALLS[call.number] is call


def test_what_the_autograd_graph_saves():
    x, y = torch.ones(2), torch.ones(2)
    call = EagerCall.learn(invocation(lambda x, y: (x * y, x.exp()), x, y, needs=(True, False)), [x, y])
    assert (call.kept_inputs, call.kept_outputs) == ((1,), (1,))


def test_a_call_and_its_backward():
    x = torch.ones(2)
    call = EagerCall.learn(invocation(lambda x: x**2, x, needs=(True,)), [x])
    tape = Tape.of(call.run([torch.full((2,), 3.0)]))
    assert [value.tolist() for value in call.results(tape)] == [[9, 9]]
    assert [value.tolist() for value in call.run_backward(tape, [torch.ones(2)])] == [[6, 6]]


def test_a_gradient_that_is_missing_is_an_error():
    given = [2 * torch.ones(2)]

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return given[0]

    x = torch.ones(2)
    call = EagerCall.learn(invocation(Function.apply, x, needs=(True,)), [x])
    given[0] = None
    with pytest.raises(EagerCallError, match=r"returns None as the gradient of a float32\[2\]"):
        call.run_backward(Tape.of(call.run([x])), [torch.ones(2)])


def test_results_get_the_strides_that_were_learnt():
    form = DenseForm.of(torch.ones(2, 3))
    transposed = torch.arange(6.0).view(3, 2).t()
    assert form.laid_out(transposed).stride() == (3, 1) and torch.equal(form.laid_out(transposed), transposed)
    assert form.admits(transposed) and not form.admits(torch.ones(2, 4)) and not form.admits(torch.ones(2, 3).double())


def test_the_structure_of_results_keeps_none():
    x = torch.ones(2)
    structure, leaves = Structure.of({"a": x, "b": [None]})
    assert leaves == [x] and structure.rebuild([x]) == {"a": x, "b": [None]}
