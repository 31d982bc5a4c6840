"""Runs cells, each in a separate process; a crash or a hang costs only its own cell.

for cell in sweep([(row, "aotgrad")], folder, limit_s=600): print(cell.outcome)

The output of a cell is kept in `folder`, and results in `folder/results.jsonl`; cells with a result are skipped. Each
process compiles everything: its caches contain only Inductor's probes of the processor, a few small compilations that
would dominate a small program's first step.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from scripts.workflows.cell import Cell, judged
from scripts.workflows.rows import BY_NAME, Row

Key = tuple[str, str]
PROBED = "probed"
PROBE = "from torch._inductor.cpu_vec_isa import pick_vec_isa; pick_vec_isa()"


def read_cells(folder: Path) -> dict[Key, Cell]:
    """The last result of each row and backend, by the row's current tolerance, without truncated lines."""
    path = folder / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else ()
    cells = map(Cell.from_line, (line for line in lines if line.endswith("}")))
    return {cell.key: judged(cell, BY_NAME[cell.row]) for cell in cells if cell.row in BY_NAME}


def sweep(tasks: Iterable[tuple[Row, str]], folder: Path, limit_s: float) -> Iterator[Cell]:
    """The cells of the tasks, in order."""
    folder.mkdir(exist_ok=True)
    for row, backend in tasks:
        probe(folder / PROBED)
        cell = in_a_process(row, backend, folder, limit_s)
        with (folder / "results.jsonl").open("a") as results:
            results.write(cell.to_line() + "\n")
        yield cell


def in_a_process(row: Row, backend: str, folder: Path, limit_s: float) -> Cell:
    with tempfile.TemporaryDirectory(prefix="aotgrad-workflows-") as scratch:
        result, log = Path(scratch) / "cell.json", folder / f"{row.name}.{backend}.log"
        shutil.copytree(folder / PROBED, inductor_cache(scratch))
        command = [sys.executable, "-m", "scripts.workflows.cell", row.name, backend, str(result)]
        with log.open("w") as output:
            try:
                status = subprocess.run(
                    command, stdout=output, stderr=subprocess.STDOUT, env=environment(scratch), timeout=limit_s
                ).returncode
            except subprocess.TimeoutExpired:
                return Cell(row.name, backend, "timed out", f"longer than {limit_s:.0f} s")
        if not result.exists():
            return Cell(row.name, backend, "crashed", f"exit status {status}: {last_line(log)}")
        return Cell.from_line(result.read_text())


def probe(folder: Path) -> None:
    """Inductor's probes of the processor, run once."""
    if not folder.exists():
        with tempfile.TemporaryDirectory(prefix="aotgrad-workflows-") as scratch:
            subprocess.run([sys.executable, "-c", PROBE], env=environment(scratch), check=True)
            shutil.copytree(inductor_cache(scratch), folder)


def inductor_cache(scratch: str) -> str:
    return f"{scratch}/inductor"


def environment(scratch: str) -> dict[str, str]:
    own = {"TORCHINDUCTOR_CACHE_DIR": inductor_cache(scratch), "AOTGRAD_CACHE_DIR": f"{scratch}/aotgrad"}
    return {**os.environ, **own, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}


def last_line(log: Path) -> str:
    return next((line for line in reversed(log.read_text().splitlines()) if line.strip()), "nothing printed")
