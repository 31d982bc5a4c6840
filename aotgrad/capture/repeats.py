"""Computations that repeat earlier ones: a trace marks their nodes, and a pass removes the effects among them.

A second-order function reruns the original function, whose prints and checks have already happened.

    with repeat_marks():
        y = f(x)            its nodes have meta["repeated"] == 1; in a function that is itself repeated, 2
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_depth: contextvars.ContextVar[int] = contextvars.ContextVar("_depth", default=0)


@contextlib.contextmanager
def repeat_marks() -> Iterator[None]:
    """Inside, recorded nodes are marked."""
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    finally:
        _depth.reset(token)


def repeat_depth() -> int:
    """The mark of the nodes that are recorded now; 0 for none."""
    return _depth.get()
