"""Islands that get and return tensor subclasses that wrap others: eager runs on the wrappers."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import aotgrad
from aotgrad.eager_calls.wrappers import WrapperParts
from aotgrad.errors import CaptureError
from tests.eager_calls.functions import ISLANDS, leaf


def checked(x):
    assert type(x) is TwoTensor
    return x.exp() * 2


def sum_of_parts(x, y):
    return {"sum": x.sin() + y, "number": y.cos(), "pair": [x * 3]}


def to_plain(x):
    return (x.a.detach() * 2, x.b.detach())


FUNCTIONS = {
    "a wrapper": lambda x, y: checked(x.cos()).sin(),
    "a wrapper that is an argument": lambda x, y: checked(x),
    "a wrapper and a plain tensor": lambda x, y: sum_of_parts(x.cos(), y)["sum"].sin() * sum_of_parts(x, y)["pair"][0],
    "plain results": lambda x, y: sum_of_parts(x.cos(), y)["number"] * y,
}
MARKED = ("checked", "sum_of_parts")


def pair():
    return TwoTensor(leaf(seed=0).detach(), leaf(seed=1).detach()).requires_grad_()


def ones_like(value):
    """A gradient of 1."""
    return TwoTensor(*map(torch.ones_like, (value.a, value.b))) if type(value) is TwoTensor else torch.ones_like(value)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_eagers(name, backend, monkeypatch):
    found = []
    for compiles in (False, True):
        function = FUNCTIONS[name]
        if compiles:
            for each in MARKED:
                monkeypatch.setitem(globals(), each, aotgrad.island(globals()[each]))
            function = aotgrad.aot_function(function, backend, options=ISLANDS)
        for _ in range(2):
            x, y = pair(), leaf(seed=2)
            result = function(x, y)
            result.backward(ones_like(result.detach()))
            gradients = [each for value in (result, x.grad, y.grad) if value is not None for each in plain_parts(value)]
            found.append([each.detach() for each in gradients])
    for case in found[1:]:
        torch.testing.assert_close(case, found[0])


def plain_parts(value):
    return (value.a, value.b) if type(value) is TwoTensor else (value,)


def test_a_wrapper_is_taken_apart_and_assembled():
    x, plain = pair(), leaf()
    apart = WrapperParts.within({"x": x, "plain": [plain, 3]})
    assert apart["plain"] == [plain, 3] and [part.tolist() for part in apart["x"].parts] == [x.a.tolist(), x.b.tolist()]
    leaves, spec = torch.utils._pytree.tree_flatten(apart)
    assert len(leaves) == 4 and spec == torch.utils._pytree.tree_structure(WrapperParts.within({"x": x, "plain": [1, 2]}))
    again = WrapperParts.assembled(apart)["x"]
    assert type(again) is TwoTensor and again.requires_grad


@pytest.mark.parametrize("function", [lambda x: x.mul_(2), lambda x: x.detach()])
def test_writes_and_views_are_errors(function):
    marked = aotgrad.island(function)
    with pytest.raises(CaptureError, match="changes a tensor subclass in place, or returns memory of one"):
        aotgrad.aot_function(lambda x: marked(x.cos()).sin(), "eager", options=ISLANDS)(pair().detach())
