"""The memory that a call allocates, by torch's profiler."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile


def most_allocated(fn: Callable[[], Any]) -> int:
    """The most bytes that a second call has allocated at any moment; its result, which it must have, stays alive."""
    fn()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = fn()
    assert result is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes), default=0)
