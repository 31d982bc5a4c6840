"""Threads that need the same functions compiled at once, in a separate process; see `cold_threads.py`.

`AOTGRAD_STRESS_REGIONS=40` makes as many regions, which takes minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.async_compile import AsyncCompile

import aotgrad
from aotgrad import torch_compat
from aotgrad.plan_cache.lock import COMPILING

REGIONS = os.environ.get("AOTGRAD_STRESS_REGIONS", "3")


def run_cold(how: str, folder: Path) -> str:
    folders = {"AOTGRAD_CACHE_DIR": f"{folder}/plans", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/code"}
    command = [sys.executable, "-m", "tests.plan_cache.cold_threads", how, "--threads", "8", "--regions", REGIONS]
    ran = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", "AOTGRAD_VERIFY": "0", **folders},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", ["eager", "inductor"])
def test_threads_that_need_everything_compiled_at_once(how: str, tmp_path: Path) -> None:
    run_cold(how, tmp_path)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", ["dynamo_eager", "dynamo_inductor"])
def test_so_do_threads_behind_dynamo_and_threads_that_find_it_all_on_disk(how: str, tmp_path: Path) -> None:
    assert "'cache_misses'" in run_cold(how, tmp_path)
    assert "'cache_misses'" not in run_cold(how, tmp_path)


def test_threads_that_need_a_backward_at_once_compile_it_once() -> None:
    graphs, barrier = [], threading.Barrier(4)

    def compiler(graph, inputs):
        graphs.append(graph)
        time.sleep(0.1)
        return aotgrad.nop(graph, inputs)

    compiled = aotgrad.aot_function(lambda x: x.sin().exp(), aotgrad.nop, compiler)
    calls = [torch.ones(3, requires_grad=True) for _ in range(4)]
    results = [compiled(x).sum() for x in calls]

    def backward(k: int) -> None:
        barrier.wait()
        results[k].backward()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(backward, range(4)))
    assert len(graphs) == 1
    assert all(torch.equal(x.grad, calls[0].grad) for x in calls)


def test_it_is_dynamos_lock() -> None:
    """Dynamo calls backends under its lock, and a traced function may call Dynamo: two locks would make a deadlock."""
    started, may_go_on = threading.Event(), threading.Event()

    inside = torch.compile(lambda x: x.sin() + 1, backend="eager")
    beside = torch.compile(lambda x: x.cos() + 1, backend="aotgrad_eager")

    def outer(x):
        started.set()
        may_go_on.wait(0.5)
        return inside(x) * 2

    ours = aotgrad.aot_function(outer, aotgrad.nop)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ours, torch.ones(3))
        started.wait(30)
        second = pool.submit(beside, torch.ones(3))
        assert torch.equal(first.result(60), torch.ones(3).sin().add(1) * 2)
        assert torch.equal(second.result(60), torch.ones(3).cos() + 1)
    assert COMPILING.lock is torch_compat.dynamos_lock()


def test_who_compiles_runs_backwards_in_its_own_thread() -> None:
    """Autograd's thread for a device might need a backward compiled, and wait for the thread that waits for it."""
    seen = []

    def function(x):
        seen.append(torch._C._is_multithreading_enabled())
        return x.sin().exp()

    def compiler(graph, inputs):
        seen.append(torch._C._is_multithreading_enabled())
        return aotgrad.nop(graph, inputs)

    x = torch.ones(2, requires_grad=True)
    aotgrad.aot_function(function, compiler)(x).sum().backward()
    assert seen == [False, False, False]
    assert torch._C._is_multithreading_enabled()
    with COMPILING, COMPILING:
        pass
    assert torch._C._is_multithreading_enabled()


def test_backwards_of_several_functions_are_compiled_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor is changed while it compiles, and is as before afterwards."""
    before = AsyncCompile.cpp_pybinding, AsyncCompile.wait
    at_once, most, compile_graph = [0], [0], torch_compat.inductor_compile

    def counted(*args: Any, **settings: Any) -> Any:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        try:
            return compile_graph(*args, **settings)
        finally:
            at_once[0] -= 1

    monkeypatch.setattr(torch_compat, "inductor_compile", counted)
    functions = [aotgrad.aot_function(lambda x, k=k: ((x * k).sin() * x).sum(), "inductor") for k in (2, 3, 4)]
    leaves = [torch.randn(8, requires_grad=True) for _ in functions]
    results = [function(x) for function, x in zip(functions, leaves, strict=True)]
    with ThreadPoolExecutor(len(results)) as pool:
        for done in [pool.submit(result.backward) for result in results]:
            done.result()
    for k, x in enumerate(leaves, 2):
        torch.testing.assert_close(x.grad, (x * k).sin() + x * k * (x * k).cos())
    assert most == [1]
    assert (AsyncCompile.cpp_pybinding, AsyncCompile.wait) == before
