"""Check aotgrad on CUDA: correctness, the runtime, and times, each case in a process of its own.

    bash scripts/cuda_check.sh --out report.md              all three parts, at most eight minutes each
    bash scripts/cuda_check.sh --part 1 --only dropout      the cases of part 1 with "dropout" in their names
    bash scripts/cuda_check.sh --emulated                   on the emulated device: all that measures nothing

The report is Markdown. PASS and FAIL speak for themselves; KNOWN fails for a reason that the row gives; SKIP needs what the
machine does not have. The program exits with 1 if a case fails, or if a known failure passes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import device
from case import Case, Need, Outcome, Row, Verdict

MARK = "outcome of the case: "
PART_SECONDS = 8 * 60
PARTS = (1, 2, 3)
JOBS = max(1, (os.cpu_count() or 1) // 2)


def cases_of(part: int) -> Sequence[Case]:
    """The cases of a part. Imports torch."""
    if part == 1:
        from correctness import CASES
    elif part == 2:
        from features import CASES
    else:
        from training import CASES
    return CASES


def run_here(part: int, name: str, output: str) -> None:
    """Run one case in this process, and write what it prints and its outcome to the file `output`."""
    with open(output, "a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    device.load()
    device.register_backends()
    case = next(case for case in cases_of(part) if case.name == name)
    try:
        outcome = case.run()
    except Exception as error:
        print(traceback.format_exc(), file=sys.stderr)
        outcome = Outcome([f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]])
    print(MARK + json.dumps({"problems": list(outcome.problems), "figures": dict(outcome.figures)}), flush=True)
    os._exit(0)  # threads of a case that hangs must not keep the process


def run_apart(part: int, case: Case, missing: Collection[Need]) -> Row:
    """Run one case in a process of its own."""
    if lacking := [need for need in case.needs if need in missing]:
        return Row(part, case.name, Verdict.SKIP, 0.0, Outcome([lacking[0].value]))
    start = time.perf_counter()
    with tempfile.NamedTemporaryFile("r") as output:
        process = new_processes().Process(target=run_here, args=(part, case.name, output.name))
        process.start()
        process.join(case.seconds)
        if process.is_alive():
            process.kill()
            outcome = Outcome([f"no end after {case.seconds} seconds"])
        else:
            printed = output.read()
            outcome = read_outcome(printed) or Outcome([f"the process ended with {process.exitcode}: {printed[-400:]}"])
    return Row(part, case.name, verdict_of(case, outcome), time.perf_counter() - start, explained(case, outcome))


@functools.cache
def new_processes() -> Any:
    """How processes start: copies of one that has imported all; new ones on a GPU, since a copy of a driver is of no use."""
    context = multiprocessing.get_context("forkserver" if device.is_emulated() else "spawn")
    context.set_forkserver_preload(["preloaded"])
    return context


def read_outcome(printed: str) -> Outcome | None:
    """The outcome that a process printed, if it did."""
    lines = [line for line in printed.splitlines() if line.startswith(MARK)]
    return Outcome(**json.loads(lines[-1][len(MARK) :])) if lines else None


def verdict_of(case: Case, outcome: Outcome) -> Verdict:
    """The verdict; a known failure that passes is a failure of the table of cases."""
    if case.known is None:
        return Verdict.FAIL if outcome.problems else Verdict.PASS
    return Verdict.KNOWN if outcome.problems else Verdict.FAIL


def explained(case: Case, outcome: Outcome) -> Outcome:
    if case.known is None:
        return outcome
    return Outcome([case.known if outcome.problems else f"passes; no longer known to fail: {case.known}"], outcome.figures)


def run_part(part: int, only: str, jobs: int, missing: Collection[Need]) -> Iterator[Row]:
    """The rows of a part as they come: cases side by side first, then those that measure, one by one."""
    chosen = [case for case in cases_of(part) if only in case.name]
    deadline = time.perf_counter() + PART_SECONDS

    def run(case: Case) -> Row:
        if time.perf_counter() > deadline:
            return Row(part, case.name, Verdict.SKIP, 0.0, Outcome([f"the part has taken {PART_SECONDS // 60} minutes"]))
        return run_apart(part, case, missing)

    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(run, [case for case in chosen if not case.alone])
    yield from map(run, [case for case in chosen if case.alone])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", type=int, choices=PARTS, help="1: correctness, 2: runtime, 3: benchmarks (default: all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases with this in their names")
    parser.add_argument("--emulated", action="store_true", help="on the emulated device")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the report (default: printed at the end)")
    parser.add_argument("--jobs", type=int, default=JOBS, help="processes (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    device.choose(arguments.emulated)
    device.load()
    import report
    import torch

    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device here; --emulated checks on an emulated one")
    parts = [arguments.part] if arguments.part else list(PARTS)
    missing, described, rows = set(device.missing()), device.description(), []
    for part in parts:
        for row in run_part(part, arguments.only, arguments.jobs, missing):
            rows.append(row)
            print(f"{row.verdict.value:5}  part {part}  {row.case}  {row.text[:200]}", flush=True)
            if arguments.out is not None:
                report.write(arguments.out, rows, described, parts)
    print(report.summary(rows) if arguments.out is not None else report.render(rows, described, parts))
    sys.exit(any(row.verdict is Verdict.FAIL for row in rows))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
