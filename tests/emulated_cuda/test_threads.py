"""Traces run backwards in the thread that traces, though tensors of a GPU have threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

import aotgrad
from aotgrad import torch_compat

SECONDS = 60
"""Much longer than anything here takes."""


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


def test_which_threads_are_of_the_engine():
    found = []
    x = torch.ones(2, device="cuda", requires_grad=True)
    x.register_hook(lambda _: found.append(torch_compat.is_engine_thread()))
    x.sum().backward()
    assert found == [True]
    assert not torch_compat.is_engine_thread()
