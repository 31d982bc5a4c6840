"""The results as a document.

page(cells, "bash scripts/workflows.sh")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from tabulate import tabulate

from scripts.workflows.cell import CLOSE, EQUAL, Cell
from scripts.workflows.rows import BACKENDS, ROWS, Row

Cells = Mapping[tuple[str, str], Cell]
PEER = "inductor"
NAMES = {"inductor": "peer", "aotgrad": "aotgrad", "aotgrad_eager": "aotgrad_eager"}


def results(cells: Cells) -> str:
    """A row for each program: the difference of each backend from eager."""
    header = ["program", "package", "tolerance", *NAMES.values()]
    lines = [
        [row.what, row.needs, f"{row.tolerance:.0e}", *(verdict(cells.get((row.name, b))) for b in BACKENDS)] for row in ROWS
    ]
    return table(lines, header)


def verdict(cell: Cell | None) -> str:
    match cell:
        case None:
            return ""
        case Cell(outcome=outcome) if outcome == EQUAL:
            return "equal"
        case Cell(outcome=outcome, difference=float(difference)):
            found = f"{difference:.0e}" if outcome == CLOSE else f"**{difference:.0e}**"
            return found if cell.from_dynamo is None else f"{found} (Dynamo: {cell.from_dynamo:.0e})"
        case _:
            return f"**{cell.outcome}**"


def times(cells: Cells) -> str:
    """A row for each program: the time of a step beside eager's in the same process, the first step, and the plans."""
    header = [
        "program",
        "eager",
        *NAMES.values(),
        *(f"first, {NAMES[b]}" for b in BACKENDS),
        "compiled, peer",
        "compiled, aotgrad",
        "breaks",
    ]
    return table((times_of(row, [cells.get((row.name, b)) for b in BACKENDS]) for row in ROWS), header)


def times_of(row: Row, cells: list[Cell | None]) -> list[str]:
    eager = [cell.eager_step_s for cell in cells if cell is not None and cell.eager_step_s is not None]
    peer, ours, _ = cells
    return [
        row.what,
        f"{1e3 * min(eager):.1f} ms" if eager else "",
        *(shown(cell and cell.step_s and cell.eager_step_s and cell.step_s / cell.eager_step_s, ".2f") for cell in cells),
        *(shown(cell and cell.first_s, ".1f", " s") for cell in cells),
        *(shown(cell and cell.compilations, "d") for cell in (peer, ours)),
        shown(ours and ours.graph_breaks, "d"),
    ]


def shown(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def failures(cells: Cells, backends: Iterable[str]) -> str:
    """Failures of backends, with the first line of the error; equal errors are grouped."""
    failed = [cell for row in ROWS for b in backends if (cell := cells.get((row.name, b))) is not None and not cell.good]
    return "\n".join(failure(row, list(group)) for row, group in groupby(failed, key=lambda cell: cell.row)) or "Nowhere."


def failure(row: str, cells: list[Cell]) -> str:
    what = next(each.what for each in ROWS if each.name == row)
    seen = dict.fromkeys(reason(cell) for cell in cells)
    return f"- {what}: {'; '.join(seen)}"


def reason(cell: Cell) -> str:
    first, *_ = cell.detail.strip().splitlines()
    if cell.difference is not None:
        return f"differs by {cell.difference:.0e} at {first}"
    return f"{cell.outcome}: `{first[:200]}`"


def notes() -> str:
    return "\n".join(f"- {row.what}: {row.why}" for row in ROWS if row.why)


def table(lines: Iterable[list[str]], header: list[str]) -> str:
    return tabulate(list(lines), header, tablefmt="github", disable_numparse=True)


def versions(cells: Cells) -> str:
    packages: Iterator[str] = (package for cell in cells.values() for package in cell.versions.split(", ") if package)
    return ", ".join(sorted(set(packages), key=str.lower))


def machines(cells: Cells) -> str:
    return "; ".join(sorted({cell.machine for cell in cells.values() if cell.machine}))


def page(cells: Cells, command: str) -> str:
    """The whole document."""
    return PAGE.format(
        command=command,
        results=results(cells),
        times=times(cells),
        peer=failures(cells, [PEER]),
        ours=failures(cells, [b for b in BACKENDS if b != PEER]),
        notes=notes(),
        versions=versions(cells),
        machines=machines(cells),
        **counts("peer_good", "ran_peer", cells, PEER),
        **counts("inductor", "ran_inductor", cells, "aotgrad"),
        **counts("eager_halves", "ran_eager_halves", cells, "aotgrad_eager"),
        rows=len(ROWS),
    )


def counts(good: str, run: str, cells: Cells, backend: str) -> dict[str, int]:
    """The number of programs with eager's results under a backend, and the number that ran."""
    of_backend = [cell for row in ROWS if (cell := cells.get((row.name, backend))) is not None]
    return {good: sum(cell.good for cell in of_backend), run: len(of_backend)}


PAGE = """\
# Programs that other people wrote

`{command}` generates this document. It runs programs of common frameworks with random weights and small
sizes, in a separate environment (`scripts/workflows.txt`), in eager and with three backends, the columns of the tables:

- **peer**: `backend="inductor"`, Inductor behind torch's own AOTAutograd;
- **aotgrad**: `backend="aotgrad"`, Inductor behind aotgrad;
- **aotgrad_eager**: `backend="aotgrad_eager"`, the halves as plain FX code.

Each row is a program in [scripts/workflows](../scripts/workflows/rows.py). Each cell is a separate process with empty
caches and one thread, which runs the program in eager and then compiled. Empty cells were not run. Most programs compile
the model before the framework gets it. Where the framework compiles (a `Trainer`, `accelerate`, Lightning), the program
selects "inductor" after `aotgrad.install()`.

Run on: {machines}. Packages: {versions}.

Of {rows} programs, {eager_halves} match eager with `aotgrad_eager` ({ran_eager_halves} were run),
{inductor} with `aotgrad` ({ran_inductor}), and {peer_good} with the peer ({ran_peer}).

## Losses and gradients

The table compares the losses and the gradients of all parameters at all steps. A figure is the largest difference of a
tensor over its largest item, or over a thousandth of the step's largest gradient if that is larger. "equal" means
bitwise. Where eager halves differ, "Dynamo" is their difference from Dynamo's graph without a compiler
(`backend="eager"`), which sometimes adds gradients in another order than eager, or uses other optimizer formulas.
**Bold** cells exceed the tolerance or failed. Inductor draws eager's random numbers (`fallback_random`), and aotgrad
compiles even the smallest graphs (`min_graph_ops` is 0).

{results}

Notes on some rows:

{notes}

## Where aotgrad fails

{ours}

## Where the peer fails

{peer}

## Times

"eager" is the median processor time of the second half of the steps; the next columns are ratios to eager in the same
process (below 1 is faster). First steps compile. They are wall-clock times on a machine with other load, at times much
more, so columns of first steps do not compare. Models are tiny, so most steps are short:
[when compiling does not pay](recipes.md#when-compiling-does-not-pay). "compiled" counts plans, for aotgrad also those of
gradients of gradients. "breaks" counts Dynamo's graph breaks; the framework's Python causes them, before any backend runs.

{times}
"""
