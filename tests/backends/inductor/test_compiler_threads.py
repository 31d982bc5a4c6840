"""Threads of C++ compilers: turns, errors, forks, and the end of the program."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from aotgrad import torch_compat
from aotgrad.backends.inductor.compiler_threads import CompilerThreads, compilers_run, submit_to_compilers


@pytest.fixture(autouse=True)
def two_compilers(monkeypatch):
    monkeypatch.setattr(torch_compat, "cpp_compilers", lambda: 2)


def test_as_many_run_as_there_may_be_compilers():
    threads, go_on, started = CompilerThreads(), threading.Event(), threading.Semaphore(0)

    def work() -> None:
        started.release()
        assert go_on.wait(60)

    compilations = [threads.submit(work) for _ in range(4)]
    assert started.acquire(timeout=60) and started.acquire(timeout=60)
    assert not started.acquire(timeout=0.05) and compilers_run()
    go_on.set()
    for compilation in compilations:
        compilation.result()
    assert all(started.acquire(timeout=60) for _ in range(2)) and not any(each.is_alive() for each in compilations)


def test_an_error_is_left_to_who_does_the_work_again():
    compilation = CompilerThreads().submit(lambda: 1 // 0)
    compilation.result()
    assert not compilation.is_alive()


def test_nothing_is_submitted_where_one_compiler_may_run(monkeypatch):
    assert submit_to_compilers() is not None
    monkeypatch.setattr(torch_compat, "cpp_compilers", lambda: 1)
    assert submit_to_compilers() is None


IN_A_CHILD = """
import os, threading
from aotgrad import torch_compat
from aotgrad.backends.inductor.compiler_threads import CompilerThreads
torch_compat.cpp_compilers = lambda: 2
threads, go_on = CompilerThreads(), threading.Event()
of_parent = [threads.submit(go_on.wait) for _ in range(2)]
if not (child := os.fork()):
    done = []
    of_parent[0].result()                       # has no thread here, and waits for none
    threads.submit(lambda: done.append(1)).result()     # the turns are those of this process
    os._exit(0 if done == [1] else 1)
_, status = os.waitpid(child, 0)
go_on.set()
assert os.waitstatus_to_exitcode(status) == 0
"""

AT_THE_END = """
import threading, time
from aotgrad import torch_compat
from aotgrad.backends.inductor.compiler_threads import CompilerThreads
torch_compat.cpp_compilers = lambda: 1
threads = CompilerThreads()
threads.submit(lambda: (time.sleep(0.5), print("the first one ends", flush=True)))
threads.submit(lambda: print("the second one starts", flush=True))
"""


def run_program(text: str) -> str:
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_waits_for_no_thread_of_its_parent():
    assert run_program(IN_A_CHILD) == ""


def test_a_program_that_ends_waits_for_what_runs_and_starts_nothing():
    assert run_program(AT_THE_END) == "the first one ends\n"
