"""No garbage collection while a capture runs: it would walk all that torch has on the heap, again and again.

with collection_paused():
    ...                         a capture makes many objects that live on, and little garbage
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

MOST_AGED = 2_000_000
"""So many objects count as old without having been looked at, before all are."""

_aged = [0]


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Inside, the collector does not start by itself; afterwards it does again, if it did before.

    What was made meanwhile counts as old then: else, the next collection of young objects would walk all of it at once.
    After `MOST_AGED` such objects, everything is collected once.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() == 0:  # or else these would no longer be frozen
                _aged[:] = [_aged[0] + gc.get_count()[0]]
                gc.freeze()
                gc.unfreeze()
            if _aged[0] > MOST_AGED:
                _aged[:] = [0]
                gc.collect()
            gc.enable()
