"""Compares random programs with eager: python scripts/conformance/fuzz.py --examples 20000 --jobs 2

Prints the number of equal programs, the refused ones with reasons, and every program that differs, minimized, as a
standalone script. Exit status 1 if there is one.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.fuzz.campaign import Report, chunks, run_chunk
from tests.fuzz.ways import WAYS


def main() -> int:
    arguments = parse_arguments()
    start = time.perf_counter()
    report = Report()
    with tqdm(total=arguments.examples, unit="program", disable=arguments.quiet) as progress:
        for part in parts(arguments.examples, arguments.seed, arguments.jobs, arguments.way):
            report.add(part)
            progress.update(part.programs)
            for failure in part.failures:
                tqdm.write(f"{'-' * 100}\n{failure}")
    print_report(report, arguments.seed, time.perf_counter() - start)
    return 1 if report.failures else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=500, help="how many programs")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="where they start; random by default")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--way", choices=WAYS, default="eager", help="how programs are compiled (tests/fuzz/ways.py)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser.parse_args()


def parts(examples: int, seed: int, jobs: int, way: str) -> Iterator[Report]:
    """The reports of the chunks, in order of completion."""
    if jobs == 1:
        yield from (run_chunk(*chunk, way) for chunk in chunks(examples, seed))
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running = [pool.submit(run_chunk, *chunk, way) for chunk in chunks(examples, seed)]
        for done in concurrent.futures.as_completed(running):
            yield done.result()


def print_report(report: Report, seed: int, elapsed_s: float) -> None:
    rows = [
        ["seed", seed],
        ["programs without a difference", report.programs],
        ["programs that differ", len(report.failures)],
        ["calls", report.calls],
        ["calls refused with an error", f"{sum(report.rejections.values())} ({report.rejected_share:.1f} %)"],
        ["programs per second", f"{report.programs / elapsed_s:.1f}"],
    ]
    print(tabulate(rows, tablefmt="github"), end="\n\n")
    refused = [[count, each.kind, each.message] for each, count in report.rejections.most_common()]
    print(tabulate(refused, headers=["calls", "error", "message"], tablefmt="github"))


if __name__ == "__main__":
    sys.exit(main())
