"""Print what a function can trade of memory for time, to choose a `memory_budget` from.

    python scripts/memory_frontier.py model.py:net                      the file defines example_inputs()
    python scripts/memory_frontier.py model.py:loss --inputs "f32[8, 4] requires_grad" --backend inductor
    python scripts/memory_frontier.py model.py:net --plot front.svg     draws it, too; needs matplotlib

Functions and inputs are written as for `show_stages.py`. Nothing runs: the function is traced on fake tensors.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import aotgrad
from aotgrad.budgets import MemoryFrontier
from aotgrad.inspect.specs import SpecError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.show_stages import UsageError, find_function, inputs_for

MEGABYTE = 1e6


def plot(frontier: MemoryFrontier, path: Path, title: str) -> None:
    """Draw saved and peak bytes against the traffic of what runs again.

    Raises:
        UsageError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]  # no window and no backend
    except ImportError as error:
        raise UsageError('--plot needs matplotlib: pip install "aotgrad[plot]"') from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in ("saved", "peak"):
        points = [(getattr(p, f"{name}_bytes") / MEGABYTE, p.recompute_bytes / MEGABYTE) for p in frontier.points]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
    default = frontier.default
    for size in (default.saved_bytes, default.peak_bytes):
        label = "without a budget" if size == default.saved_bytes else None
        axes.plot(size / MEGABYTE, default.recompute_bytes / MEGABYTE, "k*", markersize=9, label=label)
    axes.set(xlabel="memory (MB)", ylabel="traffic of what runs again (MB)", title=title)
    axes.legend()
    figure.savefig(path)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("function", help="file.py:function or module:function")
    parser.add_argument("--inputs", nargs="*", metavar="INPUT", help='such as "f32[3, 4] requires_grad"')
    parser.add_argument("--backend", default="eager", choices=aotgrad.backends.names(), help="one that fuses differs")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw it to this file")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    try:
        function, module = find_function(arguments.function)
        inputs = inputs_for(function, module, arguments.inputs)
        frontier = aotgrad.memory_frontier(function, *inputs, backend=arguments.backend)
        print(frontier)
        if arguments.plot:
            plot(frontier, arguments.plot, arguments.function)
    except (UsageError, SpecError, aotgrad.errors.AOTGradError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
