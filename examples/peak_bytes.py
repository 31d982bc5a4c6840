"""How much memory a step needs, and how many kernels it runs, measured the same way for every backend.

measured = measure(lambda: step(tokens, targets))
measured.peak_bytes, measured.launches
"""

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler prints when it starts and stops


@dataclass(frozen=True)
class Measured:
    """One profiled run.

    Attributes:
        peak_bytes: the most bytes allocated at any moment, above what was allocated before the run.
        launches: the ops that no other op has called; the kernels that Inductor has generated count, too.
    """

    peak_bytes: int
    launches: int


def measure(run: Callable[[], object]) -> Measured:
    """Profile one run. Generated kernels are seen if `torch._inductor.config.cpp.enable_kernel_profile` was on."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        run()
    recorded: Any = profiler.profiler
    changes = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    ordered = [event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns())]
    kernels = [event for event in profiler.events() if is_kernel(event.name) and not has_kernel_above(event)]
    return Measured(max(itertools.accumulate(ordered), default=0), len(kernels))


def is_kernel(name: str) -> bool:
    return name.startswith(("aten::", "graph_")) or "_fused_" in name


def has_kernel_above(event: Any) -> bool:
    above = event.cpu_parent
    while above is not None and not is_kernel(above.name):
        above = above.cpu_parent
    return above is not None
