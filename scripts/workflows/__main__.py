"""Runs the programs of other people's frameworks and compares them with eager: bash scripts/workflows.sh

Results are kept in .workflows/; cells with a result there are skipped. Exit status 1 if a backend of aotgrad fails.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tqdm import tqdm

from scripts.workflows.cell import Cell
from scripts.workflows.report import PEER, page
from scripts.workflows.rows import BACKENDS, ROWS
from scripts.workflows.sweep import Key, read_cells, sweep


def main() -> int:
    arguments = parse_arguments()
    if arguments.list:
        print("\n".join(f"{row.name:32} {row.what}" for row in ROWS))
        return 0
    folder = arguments.results
    chosen = [(row, b) for row in ROWS for b in arguments.backends if not arguments.rows or row.name in arguments.rows]
    known = {} if arguments.again else read_cells(folder)
    missing = (
        []
        if arguments.report_only
        else [task for task in chosen if is_missing(known.get((task[0].name, task[1])), arguments)]
    )
    with tqdm(sweep(missing, folder, arguments.limit), total=len(missing), unit="cell", disable=not missing) as progress:
        for cell in progress:
            progress.write(line_of(cell))
    cells = read_cells(folder)
    if arguments.markdown is not None:
        arguments.markdown.write_text(page(cells, "bash scripts/workflows.sh"))
    return report_failures(cells)


def is_missing(cell: Cell | None, arguments: argparse.Namespace) -> bool:
    return cell is None or (arguments.failed and not cell.good)


def line_of(cell: Cell) -> str:
    figure = "" if cell.difference is None else f"{cell.difference:.0e} "
    return f"{cell.row:32} {cell.backend:14} {cell.outcome:10} {figure}{first_line(cell.detail)}"


def first_line(text: str) -> str:
    width = max(40, shutil.get_terminal_size().columns - 70)
    return (text.strip().splitlines() or [""])[0][:width]


def report_failures(cells: dict[Key, Cell]) -> int:
    failed = [cell for cell in cells.values() if cell.backend != PEER and not cell.good]
    for cell in failed:
        print(f"FAILED {line_of(cell)}", file=sys.stderr)
    return 1 if failed else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/workflows.sh", description=__doc__)
    parser.add_argument("rows", nargs="*", help="only these programs")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--again", action="store_true", help="run what has a result, too")
    parser.add_argument("--failed", action="store_true", help="rerun failed cells")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one program with one backend (default: 600)")
    parser.add_argument("--results", type=Path, default=Path(".workflows"), help="the folder of results")
    parser.add_argument("--markdown", type=Path, help="write the document here")
    parser.add_argument("--report-only", action="store_true", help="run nothing")
    parser.add_argument("--list", action="store_true", help="print the names of the programs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
