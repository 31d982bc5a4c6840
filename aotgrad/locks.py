"""The one lock: plans are compiled one at a time, in any thread. A call that finds its plan does not take it.

Tracing changes state that all threads share (a module's parameters, torch's kernel tables), so one lock serves all
functions. It is safe to fork: a fork waits for a compilation in another thread to end, and the child starts with the lock
free.
"""

from __future__ import annotations

import os
import threading

FORK_WAIT_SECONDS = 10.0


class ForkSafeLock:
    """A re-entrant lock that is never held by a thread that a fork left behind."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
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
            self.lock = threading.RLock()


COMPILING = ForkSafeLock()
