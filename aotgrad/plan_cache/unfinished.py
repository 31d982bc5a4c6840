"""What is unfinished when graphs have been compiled: C++ compilers that still run, and what is done with their results.

with leaving_unfinished() as work:
    run = backend.compile_forward(half)         # its C++ compilers have started, and nobody has waited for them
...                                             # code is generated for another graph meanwhile
work.finish()                                   # waits, and raises what has failed; `run` may be called now
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Unfinished:
    """The rest of some compilations, in order. It is true while there is any."""

    rest: list[Callable[[], None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.rest)

    def finish(self) -> None:
        """Do the rest. Raises what it raises; what comes after that is dropped."""
        rest, self.rest = self.rest, []
        for each in rest:
            each()


_open: ContextVar[Unfinished | None] = ContextVar("aotgrad_unfinished", default=None)


@contextlib.contextmanager
def leaving_unfinished(is_allowed: bool = True) -> Iterator[Unfinished]:
    """Inside, compilations need not be finished, unless that is not allowed; whoever opens it finishes them."""
    work = Unfinished()
    before = _open.set(work if is_allowed else None)
    try:
        yield work
    finally:
        _open.reset(before)


def finish_later(rest: Callable[[], None]) -> None:
    """Leave the rest of a compilation to whoever has allowed that; otherwise do it now."""
    work = _open.get()
    if work is None:
        rest()
    else:
        work.rest.append(rest)
