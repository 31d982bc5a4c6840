"""What a function computes again that was computed before: a trace marks its nodes, and effects among them do not happen.

A second-order function runs the original one again. What that prints or checks has been printed and checked.

    with repeated():
        y = f(x)            its nodes have meta["repeated"]
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_is_open: contextvars.ContextVar[bool] = contextvars.ContextVar("_is_open", default=False)


@contextlib.contextmanager
def repeated() -> Iterator[None]:
    """While this is open, what is recorded is marked."""
    token = _is_open.set(True)
    try:
        yield
    finally:
        _is_open.reset(token)


def is_repeated() -> bool:
    """Whether what is recorded now is marked."""
    return _is_open.get()
