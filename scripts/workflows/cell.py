"""One program with one backend, after the same in eager: python -m scripts.workflows.cell ROW BACKEND RESULT

Writes a `Cell` as JSON to the file RESULT. Both runs start from the same seeds, Inductor draws eager's random numbers, and
aotgrad also compiles graphs that are too small (the option `min_graph_ops`) or cached on disk.
"""

from __future__ import annotations

import gc
import json
import platform
import random
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy
import torch
from torch._dynamo.utils import counters as dynamo_counters

import aotgrad
from scripts.workflows.compare import difference
from scripts.workflows.rows import BY_NAME, Row
from scripts.workflows.run import Run

EQUAL, CLOSE, DIFFERS, RAISES, NOT_COMPILED = "equal", "close", "differs", "raises", "not compiled"
GOOD = (EQUAL, CLOSE)


@dataclass(frozen=True)
class Cell:
    """The result of a program with a backend. `detail` is where the largest difference is, or the error; a run that
    did not end has no figures. `from_dynamo` is the difference of deviating eager halves from Dynamo's graph without a
    compiler."""

    row: str
    backend: str
    outcome: str
    detail: str
    difference: float | None = None
    from_dynamo: float | None = None
    eager_step_s: float | None = None
    step_s: float | None = None
    first_s: float | None = None
    total_s: float | None = None
    compilations: int | None = None
    graph_breaks: int | None = None
    versions: str = ""
    machine: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.row, self.backend

    @property
    def good(self) -> bool:
        return self.outcome in GOOD

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Cell:
        return cls(**json.loads(line))


def run_cell(row: Row, backend: str) -> Cell:
    """Both runs and their comparison, in this process; an error of the compiled one is its result."""
    with settings():
        eager = run_once(row, None)
        try:
            compiled = run_once(row, backend)
            return with_dynamo(row, compiled, compared(row, eager, compiled))
        except Exception as error:
            traceback.print_exc()
            return Cell(row.name, backend, RAISES, f"{type(error).__name__}: {error}", **surroundings(row))


@contextmanager
def settings() -> Iterator[None]:
    """Setup of both runs of a cell: no compiled code, all counters at zero."""
    torch._dynamo.reset()
    dynamo_counters.clear()
    aotgrad.counters.clear()
    with torch._inductor.config.patch(fallback_random=True), aotgrad.config.patch(min_graph_ops=0, cache=False):
        yield


def run_once(row: Row, backend: str | None) -> Run:
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    run = Run(backend)
    row.program()(run)
    gc.collect()
    return run


def compared(row: Row, eager: Run, compiled: Run) -> Cell:
    """The result of the compiled run."""
    assert compiled.backend is not None
    found = difference(eager.observations, compiled.observations)
    made = compilations(compiled.backend)
    return Cell(
        row.name,
        compiled.backend,
        outcome_of(found.relative, row.tolerance) if made else NOT_COMPILED,
        found.of,
        difference=found.relative,
        eager_step_s=eager.step_s,
        step_s=compiled.step_s,
        first_s=compiled.first_s,
        total_s=sum(compiled.wall_s),
        compilations=made,
        graph_breaks=sum(dynamo_counters["graph_break"].values()),
        **surroundings(row),
    )


def with_dynamo(row: Row, compiled: Run, cell: Cell) -> Cell:
    """The result of eager halves that differ from eager, with their difference from Dynamo's own graph."""
    if cell.backend != "aotgrad_eager" or cell.outcome == EQUAL:
        return cell
    torch._dynamo.reset()
    return replace(cell, from_dynamo=difference(run_once(row, "eager").observations, compiled.observations).relative)


def judged(cell: Cell, row: Row) -> Cell:
    """The outcome of a figure, by the row's tolerance."""
    if cell.difference is None or cell.outcome == NOT_COMPILED:
        return cell
    return replace(cell, outcome=outcome_of(cell.difference, row.tolerance))


def outcome_of(relative: float, tolerance: float) -> str:
    if relative == 0.0:
        return EQUAL
    return CLOSE if relative <= tolerance else DIFFERS


def compilations(backend: str) -> int:
    """The number of plans, or of runs of torch's own AOTAutograd."""
    return dynamo_counters["aot_autograd"]["total"] if backend == "inductor" else aotgrad.counters["compilations"]


def surroundings(row: Row) -> dict[str, str]:
    """The conditions of a cell."""
    capability = torch.backends.cpu.get_cpu_capability()
    machine = f"{platform.system()}, {platform.machine()} ({capability}), Python {platform.python_version()}"
    return {"versions": versions(row), "machine": machine}


def versions(row: Row) -> str:
    return ", ".join(f"{package} {version(package)}" for package in dict.fromkeys(("torch", row.needs)))


def main() -> None:
    name, backend, result = sys.argv[1:]
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    Path(result).write_text(run_cell(BY_NAME[name], backend).to_line())


if __name__ == "__main__":
    main()
