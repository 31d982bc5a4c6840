"""Traces run backwards in the thread that traces, though tensors of a GPU have threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

import aotgrad

SECONDS = 60
"""Much longer than anything here takes."""


class Watched(torch.autograd.Function):
    """Calls `in_backward` in its backward."""

    in_backward: Callable[[], None]

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        Watched.in_backward()
        return gradient * 2


def test_the_backward_is_traced_in_the_calling_thread():
    threads = []
    Watched.in_backward = lambda: threads.append(threading.get_ident())
    x = torch.ones(3, device="cuda", requires_grad=True)
    Watched.apply(x).sum().backward()
    assert threads != [threading.get_ident()], "eager runs it in the thread of the device"
    threads.clear()
    compiled = aotgrad.aot_function(lambda x: Watched.apply(x).sin(), aotgrad.nop)
    compiled(x).sum().backward()
    assert set(threads) == {threading.get_ident()}


def test_a_backward_that_compiles_and_a_trace_do_not_wait_for_each_other():
    tracing, waiting = threading.Event(), threading.Event()
    inner = aotgrad.aot_function(lambda gradient: (gradient.sin() * 2).cos(), aotgrad.nop)

    class Compiling(torch.autograd.Function):
        """As a checkpoint: its backward calls a compiled function."""

        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            tracing.wait(SECONDS)
            waiting.set()
            return inner(gradient)

    def traced(x):
        tracing.set()
        waiting.wait(SECONDS)
        return (x.sin() * x).cos()

    outer = aotgrad.aot_function(traced, aotgrad.nop)

    def run(function):
        x = torch.ones(3, device="cuda", requires_grad=True)
        function(x).sum().backward()
        done.append(function)

    done: list[Callable] = []
    threads = [threading.Thread(target=run, args=(each,), daemon=True) for each in (outer, Compiling.apply)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(done) == 2
