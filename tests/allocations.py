"""The memory that a call allocates, by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from examples.peak_bytes import measure


def most_allocated(fn: Callable[[], Any]) -> int:
    """The most bytes that a second call has allocated at any moment; its result, which it must have, stays alive."""
    fn()
    results: list[Any] = []
    peak = measure(lambda: results.append(fn())).peak_bytes
    assert results[0] is not None
    return peak
