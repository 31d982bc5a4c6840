"""The one lock: everything is traced and compiled one at a time, in any thread. A call that finds its plan does not take it.

    with COMPILING:
        ...                         a trace, Inductor, a backward that is compiled when it is first needed

Tracing changes state that all threads share (a module's parameters, torch's kernel tables), and so does Inductor: one lock
serves all functions. Three things keep it from waiting for itself:

* It is the lock under which Dynamo compiles, and is re-entrant. Dynamo calls our backends, and a traced function may call
  one that Dynamo compiles: with two locks, two threads could each hold the one that the other needs.
* A backward that its holder runs stays in its holder's thread, where autograd would use one thread a device: such a thread
  might have to compile, and wait for a holder that waits for the backward.
* It is safe to fork: a fork waits for a compilation in another thread to end, and the child starts with the lock free.

Other locks of this package are held for a moment, by those who take no other one inside.
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
    """A re-entrant lock that is never held by a thread that a fork left behind; `renew` makes the lock of such a child."""

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
        """Wait, but not for ever: whoever compiles may itself wait for this thread."""
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
