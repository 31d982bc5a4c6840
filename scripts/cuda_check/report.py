"""The report in Markdown: what was run where, and one row for each case.

write(Path("report.md"), [row], "NVIDIA H100, torch 2.11.0+cu130, Python 3.12.1", [1])
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from case import Row, Verdict
from tabulate import tabulate

TITLES = {1: "Correctness", 2: "Runtime", 3: "Benchmarks"}
COMMAND = "bash scripts/cuda_check.sh --part {part} --only '{case}'"


def summary(rows: Sequence[Row]) -> str:
    """How many cases passed, failed, ..."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)


def render(rows: Sequence[Row], device: str, parts: Sequence[int]) -> str:
    """The whole report."""
    blocks = ["# aotgrad on CUDA", f"{device}; {datetime.date.today()}; {summary(rows)}."]
    blocks.append(f"A row is repeated by `{COMMAND.format(part='PART', case='NAME')}`.")
    for part in parts:
        blocks += [f"## Part {part}: {TITLES[part]}", table([row for row in rows if row.part == part])]
    return "\n\n".join(blocks) + "\n"


def table(rows: Sequence[Row]) -> str:
    """The rows of one part, those that fail first."""
    order = [Verdict.FAIL, Verdict.KNOWN, Verdict.PASS, Verdict.SKIP]
    ranked = sorted(rows, key=lambda row: order.index(row.verdict))
    cells = [(row.verdict.value, row.case, f"{row.seconds:.0f}", row.text.replace("|", "\\|")) for row in ranked]
    return tabulate(cells, ["verdict", "case", "seconds", "figures, or what is wrong"], "github", disable_numparse=True)


def write(path: Path, rows: Sequence[Row], device: str, parts: Sequence[int]) -> None:
    """Write the report; called after each case, so that an interrupted run leaves what it found."""
    path.write_text(render(rows, device, parts))
