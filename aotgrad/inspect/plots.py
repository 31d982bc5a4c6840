"""Pictures of reports, drawn with matplotlib, an optional extra.

In: a `MemoryFrontier` or an `Explanation`, and a file. Out: the file, in the format that its name ends with.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aotgrad.inspect.explanation import Explanation
from aotgrad.inspect.extras import import_for
from aotgrad.inspect.memory_frontier import MemoryFrontier

MEGABYTE = 1e6


@contextlib.contextmanager
def axes_in(path: Path) -> Iterator[Any]:
    """Axes to draw on; at the end, the figure is written to the file.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    figure = import_for("--plot", "matplotlib.figure").Figure(figsize=(7, 4.5), layout="constrained")  # opens no window
    yield figure.subplots()
    figure.savefig(path)


def plot_frontier(frontier: MemoryFrontier, path: Path, title: str) -> None:
    """Draw saved and peak bytes against the traffic of recomputation."""
    with axes_in(path) as axes:
        for name in ("saved", "peak"):
            points = [(getattr(p, f"{name}_bytes") / MEGABYTE, p.recompute_bytes / MEGABYTE) for p in frontier.points]
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
        default = frontier.default
        for size in (default.saved_bytes, default.peak_bytes):
            label = "without a budget" if size == default.saved_bytes else None
            axes.plot(size / MEGABYTE, default.recompute_bytes / MEGABYTE, "k*", markersize=9, label=label)
        axes.set(xlabel="memory (MB)", ylabel="traffic of recomputation (MB)", title=title)
        axes.legend()


def plot_memory(explanation: Explanation, path: Path) -> None:
    """Draw the simulated bytes alive over the ops of one call, in the order in which they run."""
    with axes_in(path) as axes:
        start = 0
        for half, rows in itertools.groupby(explanation.memory, key=lambda row: row.half):
            sizes = [row.bytes / MEGABYTE for row in rows]
            axes.fill_between(range(start, start + len(sizes)), sizes, step="mid", alpha=0.6, label=half)
            start += len(sizes)
        axes.set(xlabel="ops, in order", ylabel="memory without arguments (MB)", title=explanation.name)
        if explanation.memory:
            axes.legend()
