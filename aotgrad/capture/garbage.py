"""Pauses garbage collection during a capture: each collection would walk torch's whole heap.

with collection_paused():
    ...                         a capture makes many objects that live on, and little garbage
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

MOST_AGED = 2_000_000
"""After this many objects were marked old without a collection, everything is collected."""

_aged = [0]


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Inside, the collector does not start by itself; afterwards it is as before.

    Objects made inside count as old afterwards. Otherwise the next collection of young objects would walk all of them. After
    `MOST_AGED` such objects, everything is collected once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() == 0:  # otherwise unfreeze() would undo somebody else's freeze()
                _aged[:] = [_aged[0] + gc.get_count()[0]]
                gc.freeze()
                gc.unfreeze()
            if _aged[0] > MOST_AGED:
                _aged[:] = [0]
                gc.collect()
            gc.enable()
