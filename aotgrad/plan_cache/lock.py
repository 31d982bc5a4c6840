"""The one lock: only one thread traces or compiles at a time. A call that finds its plan does not take it.

    with COMPILING:
        ...                         a trace, Inductor, a backward that is compiled on first use

Tracing and Inductor change state that all threads share (a module's parameters, torch's kernel tables), so one lock serves
all functions. Three properties prevent deadlocks:

* It is Dynamo's own compile lock, and is re-entrant. Dynamo calls our backends, and a traced function may call one that
  Dynamo compiles: with two locks, two threads could each hold the lock that the other needs.
* The holder runs backwards in its own thread. Autograd's device threads might have to compile, and would wait for a holder
  that waits for the backward.
* It is safe to fork: a fork waits until another thread's compilation ends, and the child starts with the lock free.

Other locks of this package are held briefly, and never while taking another lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from aotgrad import torch_compat

FORK_WAIT_SECONDS = 10.0


class ForkSafeLock:
    """A re-entrant lock that is free in a forked child; `renew` makes the child's lock."""

    def __init__(self, lock: Any = None, renew: Callable[[], Any] = threading.RLock) -> None:
        self.lock = lock or renew()
        self.renew = renew
        self.is_held_by_fork = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self.before_fork, after_in_parent=self.after_fork, after_in_child=self.in_child)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def before_fork(self) -> None:
        """Wait for a limited time: the compiling thread may itself wait for this one."""
        self.is_held_by_fork = self.lock.acquire(timeout=FORK_WAIT_SECONDS)

    def after_fork(self) -> None:
        if self.is_held_by_fork:
            self.lock.release()

    def in_child(self) -> None:
        if self.is_held_by_fork:
            self.lock.release()
        else:
            self.lock = self.renew()


class CompileLock(ForkSafeLock):
    """A lock whose holder runs backwards in its own thread."""

    def __init__(self, lock: Any = None, renew: Callable[[], Any] = threading.RLock) -> None:
        super().__init__(lock, renew)
        self.modes: list[torch.autograd.set_multithreading_enabled] = []  # of the holder, the innermost last

    def __enter__(self) -> None:
        super().__enter__()
        self.modes.append(torch.autograd.set_multithreading_enabled(False))  # sets it

    def __exit__(self, *error: object) -> None:
        self.modes.pop().__exit__(None, None, None)
        super().__exit__(*error)

    def in_child(self) -> None:
        if not self.is_held_by_fork:
            self.modes = []
        super().in_child()


COMPILING = CompileLock(torch_compat.dynamos_lock(), torch_compat.new_dynamos_lock)
