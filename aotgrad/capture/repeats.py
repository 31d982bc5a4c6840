"""Computations that repeat earlier ones: a trace marks their nodes, and a pass removes the effects among them.

A second-order function reruns the original function, whose prints and checks have already happened.

    with repeat_marks():
        y = f(x)            its nodes have meta["repeated"]
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_is_open: contextvars.ContextVar[bool] = contextvars.ContextVar("_is_open", default=False)


@contextlib.contextmanager
def repeat_marks() -> Iterator[None]:
    """Inside, recorded nodes are marked."""
    token = _is_open.set(True)
    try:
        yield
    finally:
        _is_open.reset(token)


def is_repeated() -> bool:
    """Whether recorded nodes are marked now."""
    return _is_open.get()
