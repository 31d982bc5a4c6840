"""`python -m aotgrad check mypackage:backend`: the arguments, and a run."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from aotgrad.conformance.backend import BackendChecks, BackendMinimizer, CheckedOps
from aotgrad.conformance.excluded import draw_ops
from aotgrad.conformance.progress import progress_bar
from aotgrad.conformance.report import BackendReport
from aotgrad.conformance.subjects import Operator
from aotgrad.conformance.sweep import Done, Row, StartWorker, Task, read_rows, sweep
from aotgrad.conformance.variants import OF_BACKENDS
from aotgrad.conformance.verdict import Crashed, SubjectVerdict, TimedOut
from aotgrad.errors import BackendError
from aotgrad.inspect.targets import UsageError

ENDS_THE_PROCESS = (Crashed, TimedOut)
MINIMIZING = 10
"""A failure may take this many times the limit of a check to minimize."""

DESCRIPTION = """Compare a backend with eager on each operator and module of torch's own databases, on small models and on
programs that return views or change their arguments, forward and backward. What the backend does not support runs in eager
islands, and must pass, too. Needs `pip install aotgrad[check]`. See docs/backends.md."""


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="BACKEND", help="module:attribute (a Backend or compile function), or a name")
    parser.add_argument("--variants", nargs="+", choices=OF_BACKENDS, default=[*OF_BACKENDS], metavar="VARIANT",
                        help=f"default: all of {', '.join(OF_BACKENDS)}")  # fmt: skip
    parser.add_argument("--operators", nargs="+", metavar="PREFIX", help="only names that start so, such as nn.functional.l")
    parser.add_argument("--samples", type=int, default=2, help="the most samples of an operator (default: 2)")
    parser.add_argument("--tolerance", type=positive, default=1, metavar="FACTOR",
                        help="multiplies the errors that are allowed, for lower precision (default: 1)")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, help="how many processes (default: 1)")
    parser.add_argument("--limit", type=float, default=60, metavar="SECONDS", help="for one check (default: 60)")
    parser.add_argument("--results", type=Path, default=Path("check.jsonl"), metavar="FILE",
                        help="results; checks with one there are skipped (default: check.jsonl)")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="repeat the checks that failed")
    parser.add_argument("--scripts", type=Path, default=Path("check_failures"), metavar="FOLDER",
                        help="of minimized failures (default: check_failures)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here as JSON")
    parser.add_argument("--without", type=int, default=0, metavar="N", help="take N random ops away from the backend")
    parser.add_argument("--seed", type=int, default=0, help="draws these ops (default: 0)")
    parser.add_argument("--device", default="cpu", help="of the inputs (default: cpu)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def positive(text: str) -> float:
    """Raises ValueError."""
    if not 0 < (value := float(text)) < math.inf:
        raise ValueError
    return value


def check_backend_named(arguments: argparse.Namespace) -> BackendReport:
    """Run the checks that have no result yet, minimize the failures, and report on all that were chosen.

    Raises:
        UsageError: there is no such backend, no such operator, or a package is missing.
    """
    try:
        without = draw_ops(arguments.without, arguments.seed)
        checks = BackendChecks(arguments.target, without, arguments.device, arguments.tolerance)
        checks.backend()
        subjects = checks.subjects()
    except BackendError as error:
        raise UsageError(str(error)) from error
    except ModuleNotFoundError as error:
        raise UsageError(f"torch's databases need another package ({error}): pip install aotgrad[check]") from error
    names = sorted(subjects)
    if arguments.operators is not None:
        names = names_with(arguments.operators, names)
    tasks = [Task(str(checks), variant, name, arguments.samples) for variant in arguments.variants for name in names]
    rows = run_checks(checks, tasks, arguments)
    operators = frozenset(name for name, subject in subjects.items() if isinstance(subject, Operator))
    report = BackendReport(checks, tuple(rows[task] for task in tasks), operators)
    if arguments.json is not None:
        arguments.json.write_text(report.to_json() + "\n")
    return report


def names_with(prefixes: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that start with one of the prefixes. A dot is as good as an underscore.

    >>> names_with(["nn.functional.l"], ["nn_functional_linear", "nn.Linear"])
    ['nn_functional_linear']

    Raises:
        UsageError: no name starts with one of them.
    """
    starts = {prefix: prefix.replace(".", "_") for prefix in prefixes}
    found = {name: [each for each, start in starts.items() if name.replace(".", "_").startswith(start)] for name in names}
    if unknown := set(prefixes).difference(*found.values()):
        raise UsageError(f"no operator starts with {' or '.join(sorted(unknown))}")
    return [name for name, matches in found.items() if matches]


def run_checks(checks: BackendChecks, tasks: list[Task], arguments: argparse.Namespace) -> dict[Task, Row]:
    """The row of each task, from the file of results or from a run, which appends to it."""
    rows = read_rows(arguments.results)
    missing = [task for task in tasks if task not in rows or (arguments.again and rows[task].verdict.fails)]
    for done in answers("checking", missing, checks, arguments.limit, arguments):
        rows[done.task] = keep(row_of_check(done), arguments)
    failing = [row for task in tasks if (row := rows[task]).verdict.fails and row.script is None]
    folder = arguments.scripts.resolve()
    if failing:
        folder.mkdir(parents=True, exist_ok=True)
    for apart in (False, True):
        chosen = [row.task for row in failing if isinstance(row.verdict, ENDS_THE_PROCESS) == apart]
        minimizer = BackendMinimizer(checks, folder, arguments.limit if apart else None)
        for done in answers("minimizing", chosen, minimizer, MINIMIZING * arguments.limit, arguments):
            rows[done.task] = keep(replace(rows[done.task], script=script_of(done)), arguments)
    return rows


def answers(
    title: str, tasks: list[Task], start: StartWorker, limit_s: float, arguments: argparse.Namespace
) -> Iterator[Done]:
    """The answers to tasks, with a progress bar."""
    yield from progress_bar(sweep(tasks, start, arguments.jobs, limit_s), len(tasks), title, arguments.quiet)


def keep(row: Row, arguments: argparse.Namespace) -> Row:
    """Append a row to the file of results."""
    with arguments.results.open("a") as file:
        print(row.to_line(), file=file)
    return row


def row_of_check(done: Done) -> Row:
    match done.answer:
        case CheckedOps(verdict, ops):
            return Row(done.task, verdict, done.elapsed_s, ops)
        case verdict:
            return Row(done.task, verdict, done.elapsed_s)


def script_of(done: Done) -> str:
    """The file of a script, relative to the current folder if it is there, or why there is none."""
    if isinstance(done.answer, SubjectVerdict):
        return f"none: {type(done.answer).__name__} while it was minimized: {done.answer.reason}"
    return done.answer if done.answer.startswith("none") else os.path.relpath(done.answer)
