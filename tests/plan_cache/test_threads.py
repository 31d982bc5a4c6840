"""Several threads, forks, nested calls, and memory that stays alive."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import aotgrad
from aotgrad.plan_cache.lock import COMPILING, ForkSafeLock


def in_threads(count, work):
    """What `work(k)` returns in each of `count` threads that start at the same moment."""
    barrier = threading.Barrier(count)

    def start(k):
        barrier.wait()
        return work(k)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def test_threads_that_miss_at_once_compile_once():
    compiled = aotgrad.aot_function(lambda x: x.sin().exp(), aotgrad.nop)
    x = torch.randn(5)
    for result in in_threads(4, lambda k: compiled(x)):
        assert torch.equal(result, x.sin().exp())
    assert len(compiled.plans()) == 1


def test_many_threads_with_several_shapes():
    compiled = aotgrad.aot_function(lambda x: x.sin() * 2, aotgrad.nop)

    def train(k):
        for step in range(20):
            x = torch.randn(2 + (k + step) % 4, requires_grad=True)
            compiled(x).sum().backward()
            assert torch.equal(x.grad, torch.full_like(x, 2) * x.cos())
        return aotgrad.last_executed()

    last = in_threads(6, train)
    assert len(compiled.plans()) == 4
    assert {id(plan) for plan in last} <= {id(plan) for plan in compiled.plans()}


def test_a_hit_takes_no_lock():
    compiled = aotgrad.aot_function(lambda x: x * 2, aotgrad.nop)
    module = aotgrad.aot_module(nn.Linear(2, 2), aotgrad.nop)
    x = torch.ones(1, 2)
    compiled(x), module(x)
    with COMPILING, ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(compiled, x).result(timeout=30), x * 2)
        assert pool.submit(module, x).result(timeout=30).shape == (1, 2)


def test_a_module_is_used_while_another_thread_traces_it():
    """A trace temporarily puts its own tensors into the module; no other call may see them."""
    tracing, may_go_on = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((2,), 3.0))

        def forward(self, x):
            if x.shape[0] == 5:
                tracing.set()
                may_go_on.wait(30)
            return (x.unsqueeze(-1) * self.weight).sum()

    module = aotgrad.aot_module(Slow(), aotgrad.nop)
    assert module(torch.ones(4)) == 24
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(module, torch.ones(5))
        assert tracing.wait(30)
        second = pool.submit(module, torch.ones(4))
        may_go_on.set()
        assert (first.result(30), second.result(30)) == (30, 24)


def test_a_compiled_function_is_inlined_into_a_trace():
    graphs = []

    def compiler(graph, inputs):
        graphs.append(graph)
        return aotgrad.nop(graph, inputs)

    inner = aotgrad.aot_function(lambda x: x.sin(), aotgrad.nop)
    outer = aotgrad.aot_function(lambda x: inner(inner(x)) * 2, compiler)
    x = torch.randn(3)
    assert torch.equal(outer(x), x.sin().sin() * 2)
    assert [node.name for node in graphs[0].graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)] == [
        "sin",
        "sin_1",
    ]
    assert inner.plans() == []


def test_a_function_that_calls_itself():
    @lambda function: aotgrad.aot_function(function, aotgrad.nop)
    def power(x, n):
        return x if n == 0 else x * power(x, n - 1)

    assert power(torch.tensor(2.0), 3).item() == 16


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*use of fork.*may lead to deadlocks:DeprecationWarning")
def test_a_child_process_calls_and_compiles():
    compiled = aotgrad.aot_function(lambda x: x * 2, aotgrad.nop)
    compiled(torch.ones(2))
    held, done = threading.Event(), threading.Event()

    def hold():
        with COMPILING:
            held.set()
            done.wait(1)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    child = os.fork()
    if child == 0:
        right = [compiled(torch.ones(n)).sum().item() == 2 * n for n in (2, 3)]
        os._exit(0 if right == [True, True] and len(compiled.plans()) == 2 else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert compiled(torch.ones(4)).sum() == 8


def test_a_lock_that_could_not_be_had_is_new_in_the_child():
    lock = ForkSafeLock()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lock.__enter__).result()
        lock.is_held_by_fork = lock.lock.acquire(timeout=0.01)
        assert not lock.is_held_by_fork
        lock.in_child()
        with lock:
            pass


def test_plans_go_with_their_function():
    compiled = aotgrad.aot_function(lambda x: x.sin(), aotgrad.nop)
    x = torch.ones(2, requires_grad=True)
    compiled(x).sum().backward()
    plan = weakref.ref(compiled.plans()[0])
    graph = weakref.ref(plan().executable.partition.forward.module)
    assert aotgrad.last_executed() is plan()
    del compiled
    gc.collect()
    assert (plan(), graph(), aotgrad.last_executed()) == (None, None, None)


def test_plans_go_with_their_module():
    module = aotgrad.aot_module(nn.Linear(2, 2), aotgrad.nop)
    module(torch.ones(1, 2)).sum().backward()
    plan, weight = weakref.ref(module.plans()[0]), weakref.ref(module.weight)
    del module
    gc.collect()
    assert (plan(), weight()) == (None, None)


def test_clearing_lets_go_of_plans():
    compiled = aotgrad.aot_function(lambda x: x.sin(), aotgrad.nop)
    compiled(torch.ones(2))
    plan = weakref.ref(compiled.plans()[0])
    aotgrad.clear_cache(compiled)
    gc.collect()
    assert plan() is None


def test_a_plan_keeps_no_argument_alive():
    compiled = aotgrad.aot_function(lambda x, y: x.mul_(2) + y, aotgrad.nop)
    x, y = torch.ones(2), torch.ones(2)
    references = [weakref.ref(x), weakref.ref(y)]
    compiled(x, y)
    compiled(x, y)
    del x, y
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_plan_whose_first_trace_failed_keeps_the_memory_of_no_argument_alive():
    class Tag:
        pass

    compiled = aotgrad.aot_function(lambda x: x.cos() if x.sum() > 0 else x.sin(), aotgrad.nop)
    x, tag = torch.ones(2, requires_grad=True), Tag()
    x.untyped_storage().tag = tag  # which lives as long as the memory
    reference = weakref.ref(tag)
    compiled(x).sum().backward()
    del x, tag
    gc.collect()
    assert reference() is None
