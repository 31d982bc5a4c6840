"""Threads that wait for C++ compilers, each for one at a time; at most as many compile as Inductor allows.

    compiling = submit(compile_library)         it runs in a thread, or waits for its turn
    compiling.result()                          waits for its end, but raises nothing

Inductor does the work of such a promise once more, which is nothing if it has succeeded. So whoever needs a library meets
the error itself, or compiles what another thread could not: in a forked child, which lacks the threads of its parent, and
where the folder was removed meanwhile. A program that ends waits for compilers that run, and starts no other ones.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from aotgrad import torch_compat


class CompilerThread(threading.Thread):
    """Work for a compiler in a thread of its own. The program does not end before it does."""

    def __init__(self, work: Callable[[], None], turn: threading.Semaphore) -> None:
        super().__init__(name="aotgrad-compiler", daemon=False)
        self.work, self.turn, self.process = work, turn, os.getpid()

    def run(self) -> None:
        with self.turn, contextlib.suppress(Exception):
            if threading.main_thread().is_alive():
                self.work()

    def result(self) -> None:
        """Wait for the end of the work, if it is this process that does it."""
        if os.getpid() == self.process:
            self.join()


class CompilerThreads:
    """Hands out the turns of compilers; those that began to wait first have their turns first."""

    def __init__(self) -> None:
        self.turns: dict[tuple[int, int], threading.Semaphore] = {}

    def submit(self, work: Callable[[], None]) -> CompilerThread:
        """Start to do some work."""
        compilers = torch_compat.cpp_compilers()
        turn = self.turns.setdefault((os.getpid(), compilers), threading.Semaphore(compilers))
        compilation = CompilerThread(work, turn)
        compilation.start()
        return compilation


THREADS = CompilerThreads()


def submit_to_compilers() -> Callable[[Callable[[], None]], CompilerThread] | None:
    """`submit` of the threads; `None` if Inductor compiles in the calling thread, as where there is one core only."""
    return THREADS.submit if torch_compat.cpp_compilers() > 1 else None


def compilers_run() -> bool:
    """Whether a C++ compiler runs for this process, or will."""
    return any(isinstance(thread, CompilerThread) for thread in threading.enumerate())
