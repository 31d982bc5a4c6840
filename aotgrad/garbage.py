"""No garbage collection while a capture runs: it would walk all that torch has on the heap, again and again.

with collection_paused():
    ...                         a capture makes many objects that live on, and little garbage
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Inside, the collector does not start by itself; afterwards it does again, if it did before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
