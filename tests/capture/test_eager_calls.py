"""What of an error of a trace is found to be untraceable."""

from __future__ import annotations

import pytest
import torch

import aotgrad
from aotgrad.capture.eager_calls import Islands, untraceable_function
from tests.eager_calls.functions import NumpyBackward, NumpySin, cosine, leaf, sine

OPS = torch.ops.aotgrad_islands
CASES = {
    "forward": (NumpySin.apply, (NumpySin, "it turns a tensor into a NumPy array")),
    "backward": (NumpyBackward.apply, (NumpyBackward, "it turns a tensor into a NumPy array")),
    "op": (lambda x: cosine(x.detach()) + x, (OPS.cosine.default, "it has no fake implementation")),
    "op with a formula": (sine, (OPS.sine.default, "it has no fake implementation")),
    "the innermost": (OPS.kernel, (NumpySin, "it turns a tensor into a NumPy array")),
    "no function": (lambda x: x * float(x.detach().numpy()[0, 0]), None),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_traced(name):
    function, expected = CASES[name]
    with pytest.raises((aotgrad.errors.CaptureError, RuntimeError)) as caught:
        trace(function)
    assert untraceable_function(caught.value) == expected


def trace(function):
    """Trace a function with its backward. Its own errors pass, as if they were eager's."""
    aotgrad.export_joint(lambda x: function(x * 1).exp(), (leaf(),), options={"islands": False})


def test_an_error_with_another_reason_is_none():
    with pytest.raises(ZeroDivisionError) as caught:
        NumpySin.apply(1 / 0)
    assert untraceable_function(caught.value) is None


def test_an_op_is_found_by_each_of_its_names():
    islands = Islands.on([]).with_function(OPS.sine.default, "a test").with_function(NumpySin, "another")
    assert islands.ops == {OPS.sine: "a test", OPS.sine.default: "a test"}
    assert islands.classes == {NumpySin: "another"}
