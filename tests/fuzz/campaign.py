"""Runs many fresh programs. A campaign is cut into chunks with seeds of their own, so that it can be spread over processes.

for seed, examples in chunks(500, seed=1): run_chunk(seed, examples)      Report(programs=100, ...)

python scripts/conformance/fuzz.py --examples 500 --seed 1                the same programs again
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed

from tests.fuzz.compare import Rejection, check
from tests.fuzz.program import Program
from tests.fuzz.script import standalone
from tests.fuzz.strategies import programs

CHUNK = 100
"""Programs of one chunk. A chunk ends at its first failure, which is then made small."""

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
    """Check `examples` programs drawn from `seed`; stops at the first that differs, and makes it small."""
    torch.set_num_threads(1)
    report = Report()
    failure: list[tuple[Program, str]] = []

    @with_seed(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def differs_in_nothing(program: Program) -> None:
        try:
            rejections = check(program)
        except Exception as error:
            failure[:] = [(program, found_text(error))]
            raise
        if not failure:
            report.programs += 1
            report.calls += len(program.rounds)
            report.rejections.update(rejections)

    logging.disable(logging.CRITICAL)  # torch logs what fails while tracing, before it raises
    try:
        differs_in_nothing()
    except Exception:
        if not failure:
            raise
        report.failures.append(standalone(*failure[0]))
    finally:
        logging.disable(logging.NOTSET)
    return report


def found_text(error: Exception) -> str:
    """What is written on top of the script: the difference, or where an error comes from."""
    if isinstance(error, AssertionError):
        return str(error)
    return "".join(traceback.format_exception(error))
