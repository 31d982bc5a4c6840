"""Compares every operator of torch's own database with eager: python scripts/conformance/ops.py --jobs 2

Each is called with sample inputs, forward and backward, in several variants (`--list`), by aotgrad and by the peer. The
results are kept in a file of JSON lines; tasks with a result there are skipped. Exit status 1 if aotgrad fails in a way
that tests/conformance/expected_failures.py does not list, or a line there no longer fails.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2]))
from aotgrad.conformance.command import names_with
from aotgrad.conformance.subjects import find_subjects
from aotgrad.conformance.sweep import Row, Task, read_rows, sweep
from aotgrad.conformance.verdict import BY_NAME
from aotgrad.inspect.targets import UsageError
from tests.conformance.compilers import checks
from tests.conformance.expectations import outdated, unexpected
from tests.conformance.report import exceptions, page, summary, verdicts
from tests.conformance.variants import VARIANTS
from tests.device import TYPE


def main() -> int:
    arguments = parse_arguments()
    if arguments.list:
        print("\n".join(VARIANTS))
        return 0
    try:
        tasks = list(chosen_tasks(arguments))
    except UsageError as error:
        sys.exit(str(error))
    known = read_rows(arguments.results)
    again = tuple(BY_NAME[name] for name in arguments.again)
    missing = [task for task in tasks if task not in known or isinstance(known[task].verdict, again)]
    for row in () if arguments.report_only else run(missing, arguments):
        known[row.task] = row
    rows = [known[task] for task in tasks if task in known]
    print_report(rows)
    if arguments.markdown is not None:
        arguments.markdown.write_text(page(rows, command_of(arguments), arguments.note))
    return 1 if complain(rows) else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--compilers", nargs="+", choices=("aotgrad", "peer"), default=["aotgrad", "peer"])
    parser.add_argument("--operators", nargs="+", metavar="PREFIX", help="only names that start so")
    parser.add_argument("--samples", type=int, default=2, help="the most samples of one operator")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one operator in one variant")
    parser.add_argument("--results", type=Path, default=Path("conformance.jsonl"), help="the file of results")
    parser.add_argument("--again", nargs="+", choices=BY_NAME, default=[], help="rerun these verdicts")
    parser.add_argument("--report-only", action="store_true", help="run nothing, report what is in the file")
    parser.add_argument("--markdown", type=Path, help="write the report here as a document")
    parser.add_argument("--note", default="", help="what the document says of how the results came about")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--list", action="store_true", help="print the names of the variants")
    return parser.parse_args()


def command_of(arguments: argparse.Namespace) -> str:
    """The command that regenerates the document."""
    variants = "" if arguments.variants == list(VARIANTS) else f"--variants {shlex.join(arguments.variants)} "
    return f"python scripts/conformance/ops.py {variants}--markdown {arguments.markdown}"


def chosen_tasks(arguments: argparse.Namespace) -> Iterator[Task]:
    """The tasks of the chosen operators; a variant may be for every few of them only.

    Raises:
        UsageError: an operator that was asked for is in none of the chosen variants.
    """
    names = sorted(find_subjects(TYPE))
    compared = {variant: names[:: VARIANTS[variant].every] for variant in arguments.variants}
    if arguments.operators is not None:
        chosen = set(names_with(arguments.operators, sorted(set().union(*compared.values()))))
        compared = {variant: [name for name in found if name in chosen] for variant, found in compared.items()}
    for variant, found in compared.items():
        for name in found:
            yield from (Task(compiler, variant, name, arguments.samples) for compiler in arguments.compilers)


def run(tasks: list[Task], arguments: argparse.Namespace) -> Iterator[Row]:
    """The rows of the tasks; also appends them to the file."""
    with arguments.results.open("a") as file, tqdm(total=len(tasks), unit="check", disable=arguments.quiet) as progress:
        for done in sweep(tasks, checks, arguments.jobs, arguments.limit):
            row = Row(done.task, done.answer, done.elapsed_s)
            print(row.to_line(), file=file, flush=True)
            progress.update()
            yield row


def print_report(rows: list[Row]) -> None:
    print(summary(rows), end="\n\n")
    print(verdicts(rows), end="\n\n")
    print(exceptions([row for row in rows if row.task.compiler == "aotgrad"]))


def complain(rows: list[Row]) -> bool:
    """Print the wrong lines of the table of expected failures; return whether there are any."""
    new, old = unexpected(rows), outdated(rows)
    for row in new:
        print(f"not expected: {row.task.subject}, {row.task.variant}: {row.verdict}")
    for line in old:
        print(f"expected to fail, but passes: {line}")
    return bool(new or old)


if __name__ == "__main__":
    sys.exit(main())
