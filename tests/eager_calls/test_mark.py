"""The decorator outside of a trace, and how a trace sees the calls of marked functions and of autograd functions."""

from __future__ import annotations

import threading

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

    def record(untraced, args, kwargs):
        calls.append((untraced.name, untraced.reason, untraced.fake, args, kwargs))
        return untraced.function(*args, **kwargs)

    with recorded_by(record):
        doubled(3, twice=2)
        with recorded_by(None):
            doubled(4)
    doubled(5)
    assert calls == [("doubled", "it is marked as an island", None, (3,), {"twice": 2})]


def test_applications_of_autograd_functions_are_recorded_until_the_end():
    x, calls, apply = leaf(), [], NumpySin.apply
    with recorded_applications({NumpySin: "a test"}):
        torch.testing.assert_close(NumpySin.apply(x), x.sin())
        with recorded_by(lambda untraced, *_: calls.append((untraced.name, untraced.reason))):
            NumpySin.apply(x)
    assert calls == [("NumpySin", "a test")]
    assert apply == NumpySin.apply and "apply" not in vars(NumpySin)


def test_other_threads_and_subclasses_apply_as_usual():
    class Doubled(NumpySin):
        @staticmethod
        def forward(ctx, x):
            return NumpySin.forward(ctx, x) * 2

    calls, found = [], []
    with recorded_applications({NumpySin: "a test"}), recorded_by(lambda *call: calls.append(call)):
        thread = threading.Thread(target=lambda: found.extend((NumpySin.apply, NumpySin.apply(leaf()))))
        thread.start()
        thread.join()
        torch.testing.assert_close(Doubled.apply(leaf()), leaf().sin() * 2)
    assert found[0] == NumpySin.apply and calls == []
    torch.testing.assert_close(found[1], leaf().sin())


def test_an_apply_of_its_own_is_recorded():
    class Own(NumpySin):
        @classmethod
        def apply(cls, x, times):
            return super().apply(x) * times

    calls = []
    with (
        recorded_applications({Own: "a test"}),
        recorded_by(lambda untraced, args, _: calls.append(untraced.function(*args))),
    ):
        Own.apply(leaf(), 3)
    torch.testing.assert_close(calls, [leaf().sin() * 3])
