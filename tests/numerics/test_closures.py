"""Tensors that a function closes over: read at every call and returned as they are; mutations and views are refused."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import aotgrad
from aotgrad.errors import AOTGradError, UnsupportedAliasingError

from .against_eager import COMPILERS, assert_like_eager, assert_matches, closeness, compiled, leaf, plain
from .cases import Case, Cases

CASES = Cases()
WEIGHT, MATRIX, SCALE = torch.arange(1.0, 4.0), torch.arange(6.0).view(3, 2), torch.tensor([[2.0], [3.0]])
PARAMETER = torch.arange(1.0, 4.0, requires_grad=True)
LIFTED = "Dynamo makes them inputs of the graph, and guards them"


@CASES.add(lambda: (leaf(3),))
def read(x):
    return x * WEIGHT


@CASES.add(lambda: (leaf(3),))
def several_sizes(x):
    return (x * WEIGHT).sin() @ MATRIX, (x * MATRIX.T).exp() * SCALE


@CASES.add(lambda: (leaf(3),))
def returned(x):
    return x * 2, WEIGHT, WEIGHT


@CASES.add(lambda: (leaf(3),), without_dynamo=LIFTED)
def returned_with_a_gradient(x):
    return x * 2, PARAMETER


@CASES.add(lambda: ())
def returned_alone():
    return WEIGHT


@CASES.add(lambda: ())
def computed_from_nothing_else():
    return WEIGHT * 2


@CASES.add(lambda: (leaf(3),))
def what_is_computed_from_it_is_changed(x):
    y = WEIGHT * 2
    y.add_(x)
    return y


@CASES.add(lambda: (leaf(3),))
def what_is_computed_from_it_is_changed_through_a_view(x):
    y = WEIGHT * 2
    y[1:].add_(1)
    return x * y, y, y[:2]


@CASES.add(lambda: (leaf(2),))
def viewed(x):
    return x * WEIGHT[1:], x + WEIGHT.detach()[:2]


@CASES.parametrize()
def test_closures(case: Case, backend: str) -> None:
    case.check(backend)


def test_a_returned_tensor_is_the_same_object() -> None:
    under_test = compiled(lambda x: (x * 2, WEIGHT), "nop")
    assert under_test(plain(3))[1] is under_test(plain(3))[1] is WEIGHT


READING = {
    "a product": lambda x, w: x * w,
    "what the backward needs": lambda x, w: (x * w.sin()).sin(),
    "a view": lambda x, w: x + w.t() * 2,
    "a part": lambda x, w: x[1:] + w[1:] * 2,
    "a number": lambda x, w: x * w[0].item(),
    "a place": lambda x, w: x.detach().narrow(0, w[0].abs().long() % 2, 1) * 2,
    "a condition": lambda x, w: torch.where(w > 1.5, x, -x),
    "an op that needs a tensor": lambda x, w: x.index_select(0, w.long() % 2) * 2,
    "beside a sparse tensor": lambda x, w: (x.diag().to_sparse() @ (w * 2)[:, None]).sin() * w,
    "nothing else": lambda x, w: (w * 2, x.sin()),
}


@pytest.mark.parametrize("backend", COMPILERS)
@pytest.mark.parametrize("size", [3, 30])
@pytest.mark.parametrize("name", READING)
def test_its_value_is_that_of_the_call(name: str, size: int, backend: str) -> None:
    """Inductor treats attributes as constants: it writes the values of small ones into its kernels, and folds them."""
    function, weight, close = READING[name], torch.ones(size), closeness(backend)
    under_test = compiled(lambda x: function(x, weight), backend)
    for _ in range(3):
        expected = {"compilations": None, "values_close": close}
        assert_like_eager(lambda x: function(x, weight), lambda: (leaf(size),), under_test, **expected)
        weight.add_(torch.arange(1.0, size + 1))
    assert len(under_test.plans()) == 1


@pytest.mark.parametrize("backend", COMPILERS)
def test_its_value_is_that_of_the_call_at_second_order(backend: str) -> None:
    weight, number = torch.ones(3), torch.tensor(2.0)

    def function(x):
        return (x * weight).sin() * number

    def second(function) -> list[torch.Tensor]:
        x = torch.arange(3.0, requires_grad=True)
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return [first, *torch.autograd.grad(first.square().sum(), x)]

    under_test = compiled(function, backend)
    for _ in range(3):
        assert_matches(second(under_test), second(function), backend, close="summed in another order")
        weight.add_(torch.arange(3.0))
        number.add_(1)


def changed_beside_it(weight):
    def function(x):
        x.mul_(2)
        return weight * 3

    return function


@pytest.mark.parametrize("first", ["apart", "the same"])
def test_an_input_that_is_changed_may_not_be_the_same_memory(first: str) -> None:
    """Refused in the first call and in later ones; memory beside it is allowed."""
    buffer = torch.arange(8.0)
    under_test = compiled(changed_beside_it(buffer[:4]), "nop")
    if first == "apart":
        under_test(plain(4))
    for overlapping in (buffer[:4], buffer[2:6]):
        before = buffer.clone()
        with pytest.raises(UnsupportedAliasingError, match="a tensor which it closed over"):
            under_test(overlapping)
        assert torch.equal(buffer, before)
    for _ in range(2):
        assert torch.equal(under_test(buffer[4:]), buffer[:4] * 3)
        assert torch.equal(under_test(plain(4)), buffer[:4] * 3)


REFUSED = {
    "changed": lambda x: WEIGHT.add_(x),
    "written as out": lambda x: torch.sin(x, out=WEIGHT),
    "one of several that are changed": lambda x: torch._foreach_mul_([x, WEIGHT], 2.0),
    "changed through a view": lambda x: WEIGHT[1:].mul_(2) + x[1:],
    "a view of it returned": lambda x: (x * 2, WEIGHT[1:]),
    "a gradient of it": lambda x: x * PARAMETER,
    "a gradient of it alone": lambda x: PARAMETER * 2,
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(halves, what: str) -> None:
    before = WEIGHT.clone()
    with pytest.raises(AOTGradError, match="no argument of the function"):
        aotgrad.aot_function(REFUSED[what], halves)(plain(3))
    assert torch.equal(WEIGHT, before)


# --- Changed between the forward and the backward ---------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale.sin()

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        return gradient * scale + gradient * x, None


READERS = {
    "of a value that is cheap to compute": lambda m: lambda x: (m * 2).sin() * x,
    "of several": lambda m: lambda x: (m * m).sin() * x.exp(),
    "of a sum": lambda m: lambda x: x * m.view(2, 2).sum(0).repeat(2),
    "of a mask": lambda m: lambda x: torch.where(m > 1.5, x.exp(), x * 2),
    "of an index": lambda m: lambda x: x[m.long()].exp(),
    "of its relu": lambda m: lambda x: torch.relu(m - 1.5) * x,
    "in a region": lambda m: lambda x: checkpoint(lambda y: (m * 2).sin() * y.exp(), x, use_reentrant=False),
    "itself": lambda m: lambda x: x * m,
    "itself as a view": lambda m: lambda x: x.view(2, 2) * m.view(2, 2).t(),
    "itself in a product": lambda m: lambda x: x.view(2, 2) @ m.view(2, 2),
    "itself by a function": lambda m: lambda x: Scaled.apply(x, m),
}


def changed_in_between(read, run):
    """The gradient after a change of the tensor that a function reads, `None` if the backward needs its old value."""
    tensor, x = torch.ones(4), torch.full((4,), 0.7, requires_grad=True)
    result = run(read(tensor))(x).sum()
    tensor.add_(1)
    try:
        return torch.autograd.grad(result, x)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return None


@pytest.mark.parametrize("options", [{}, {"memory_budget": 0.0}], ids=["default", "no memory"])
@pytest.mark.parametrize("halves", ["eager", "inductor", "interpreter"])
@pytest.mark.parametrize("name", READERS)
def test_a_tensor_that_is_changed_before_the_backward(name, halves, options):
    read = READERS[name]
    expected = changed_in_between(read, lambda function: function)
    found = changed_in_between(read, lambda function: aotgrad.aot_function(function, halves, options=options))
    if options and found is None:
        return  # without memory, a gradient is computed from what may not change
    assert (found is None) == (expected is None)
    torch.testing.assert_close(found or (), expected or ())


@pytest.mark.parametrize("backend", ["aotgrad_eager", "aotgrad"])
@pytest.mark.parametrize("name", READERS)
def test_a_tensor_that_is_changed_before_the_backward_behind_dynamo(name, backend):
    read = READERS[name]
    expected = changed_in_between(read, lambda function: function)
    found = changed_in_between(read, lambda function: torch.compile(function, backend=backend, fullgraph=True))
    if name == "in a region":  # the tensor is an argument of the region: it is saved, and its change is an error
        assert found is None
    else:
        assert (found is None) == (expected is None)
        torch.testing.assert_close(found or (), expected or ())


@pytest.mark.parametrize("halves", ["eager", "inductor"])
def test_an_attribute_of_a_module_that_is_changed_before_the_backward(halves):
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = torch.ones(4)

        def forward(self, x):
            return (self.mask * 2).sin() * x

    def run(function):
        module = Masked()
        call = function(module)
        x = torch.full((4,), 0.7, requires_grad=True)
        result = call(x).sum()
        module.mask.add_(1)
        return torch.autograd.grad(result, x)

    assert_close = torch.testing.assert_close
    assert_close(run(lambda module: aotgrad.aot_module(module, halves)), run(lambda module: module))
