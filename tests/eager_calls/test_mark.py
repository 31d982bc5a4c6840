"""The decorator outside of a trace, and how a trace sees the calls of marked functions and of autograd functions."""

from __future__ import annotations

import torch

import aotgrad
from aotgrad.eager_calls.mark import recorded_applications, recorded_by
from tests.eager_calls.functions import NumpySin, leaf


@aotgrad.island
def doubled(x, *, twice=1):
    """Its docstring."""
    return x * 2 * twice


def test_outside_of_a_trace_it_is_the_function_itself():
    assert doubled(torch.ones(2), twice=2).tolist() == [4, 4]
    assert (doubled.__name__, doubled.__doc__) == ("doubled", "Its docstring.")


def test_calls_are_recorded_where_a_record_is_open():
    calls = []

    def record(function, name, reason, args, kwargs):
        calls.append((name, reason, args, kwargs))
        return function(*args, **kwargs)

    with recorded_by(record):
        doubled(3, twice=2)
        with recorded_by(None):
            doubled(4)
    doubled(5)
    assert calls == [("doubled", "it is marked as an island", (3,), {"twice": 2})]


def test_applications_of_autograd_functions_are_recorded_until_the_end():
    x, calls, apply = leaf(), [], NumpySin.apply
    with recorded_applications({NumpySin: "a test"}):
        torch.testing.assert_close(NumpySin.apply(x), x.sin())
        with recorded_by(lambda *call: calls.append(call[1:3])):
            NumpySin.apply(x)
    assert calls == [("NumpySin", "a test")]
    assert apply == NumpySin.apply and "apply" not in vars(NumpySin)
