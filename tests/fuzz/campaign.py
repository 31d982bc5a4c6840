"""Runs many fresh programs. A campaign is cut into chunks with seeds of their own, so that it can be spread over processes.

for seed, examples in chunks(500, seed=1): run_chunk(seed, examples)      Report(programs=100, ...)

python scripts/conformance/fuzz.py --examples 500 --seed 1                the same programs again
"""

from __future__ import annotations

import logging
import re
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed

from tests.fuzz.compare import Difference, Rejection, check
from tests.fuzz.program import Program
from tests.fuzz.reduce import reduced
from tests.fuzz.script import standalone
from tests.fuzz.strategies import programs

CHUNK = 100
"""Programs of one chunk."""

SEED_FACTOR = 1_000_003
"""Keeps the seeds of the chunks of two campaigns apart."""


@dataclass
class Report:
    """What a number of programs showed. `failures` are standalone scripts."""

    programs: int = 0
    calls: int = 0
    rejections: Counter[Rejection] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.programs += other.programs
        self.calls += other.calls
        self.rejections += other.rejections
        self.failures += other.failures

    @property
    def rejected_share(self) -> float:
        """Refused calls in a hundred."""
        return 100 * sum(self.rejections.values()) / max(self.calls, 1)


def chunks(examples: int, seed: int) -> Iterator[tuple[int, int]]:
    """(seed, examples) of each chunk."""
    for number, start in enumerate(range(0, examples, CHUNK)):
        yield seed * SEED_FACTOR + number, min(CHUNK, examples - start)


def run_chunk(seed: int, examples: int) -> Report:
    """Check `examples` programs drawn from `seed`; those that differ are made small in the end."""
    torch.set_num_threads(1)
    report = Report()
    failed: list[Program] = []

    @with_seed(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def look_at(program: Program) -> None:
        try:
            rejections = check(program)
        except Exception:
            failed.append(program)
            return
        report.programs += 1
        report.calls += len(program.rounds)
        report.rejections.update(rejections)

    logging.disable(logging.CRITICAL)  # torch logs what fails while tracing, before it raises
    try:
        look_at()
        report.failures += dict.fromkeys(failure_text(program) for program in failed)
    finally:
        logging.disable(logging.NOTSET)
    return report


def failure_text(program: Program) -> str:
    """A program that differs, made small, as a script with what was found on top."""
    error = error_of(program)
    if error is None:
        return standalone(program, "differed once, and not when it ran again")
    wanted = signature(error)

    def differs_alike(candidate: Program) -> bool:
        other = error_of(candidate)
        return other is not None and signature(other) == wanted

    small = reduced(program, differs_alike)
    return standalone(small, found_text(error_of(small) or error))


def error_of(program: Program) -> Exception | None:
    try:
        check(program)
    except Exception as error:
        return error
    return None


def signature(error: Exception) -> str:
    """What kind of difference it is: its first line, without names and numbers."""
    lines = str(error).splitlines()
    first = lines[1] if isinstance(error, Difference) else lines[0] if lines else ""
    return type(error).__name__ + re.sub(r"-?\d[\d.e+-]*|\[[^]]*\]|\([^)]*\)", "_", first)


def found_text(error: Exception) -> str:
    """What is written on top of the script: the difference, or where an error comes from."""
    if isinstance(error, AssertionError):
        return str(error)
    return "".join(traceback.format_exception(error))
