"""Runs many fresh programs. Each chunk of a campaign has its own seed, so that chunks can run in several processes.

for seed, examples in chunks(500, seed=1): run_chunk(seed, examples)      Report(programs=100, ...)
run_chunk(seed, examples, "inductor")                                     compiled in another way (ways.py)

python scripts/conformance/fuzz.py --examples 500 --seed 1                the same programs again
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed

from tests.fuzz.compare import Difference, Rejection, check, without_numbers
from tests.fuzz.inductor import Stage
from tests.fuzz.program import Program
from tests.fuzz.reduce import reduced
from tests.fuzz.script import standalone
from tests.fuzz.strategies import programs
from tests.fuzz.ways import THROUGH_INDUCTOR

CHUNK = 100
"""Programs of one chunk."""

SEED_FACTOR = 1_000_003
"""Keeps the seeds of the chunks of two campaigns apart."""


@dataclass
class Report:
    """The result of some programs. `failures` are standalone scripts."""

    programs: int = 0
    calls: int = 0
    rejections: Counter[Rejection] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.programs += other.programs
        self.calls += other.calls
        self.rejections += other.rejections
        self.failures += other.failures

    def note(self, program: Program, way: str) -> bool:
        """Check a program; return whether it matches eager."""
        try:
            rejections = check(program, way)
        except Exception:
            return False
        self.programs += 1
        self.calls += len(program.rounds)
        self.rejections.update(rejections)
        return True

    @property
    def rejected_share(self) -> float:
        """Percentage of refused calls."""
        return 100 * sum(self.rejections.values()) / max(self.calls, 1)


def chunks(examples: int, seed: int) -> Iterator[tuple[int, int]]:
    """(seed, examples) of each chunk."""
    for number, start in enumerate(range(0, examples, CHUNK)):
        yield seed * SEED_FACTOR + number, min(CHUNK, examples - start)


def run_chunk(seed: int, examples: int, way: str = "eager") -> Report:
    """Check `examples` programs drawn from `seed`, then minimize those that differ."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)  # torch logs what fails while tracing, before it raises
    try:
        return through_inductor(drawn(seed, examples), way) if way in THROUGH_INDUCTOR else report_of(drawn(seed, examples))
    finally:
        logging.disable(logging.NOTSET)


def drawn(seed: int, examples: int) -> list[Program]:
    found: list[Program] = []

    @with_seed(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def draw(program: Program) -> None:
        found.append(program)

    draw()
    return found


def report_of(drawn_programs: Iterable[Program]) -> Report:
    """The result of programs with graphs that run as they are."""
    report = Report()
    failed = [program for program in drawn_programs if not report.note(program, "eager")]
    report.failures += dict.fromkeys(failure_text(program) for program in failed)
    return report


def through_inductor(drawn_programs: Sequence[Program], way: str) -> Report:
    """The result of programs with graphs that Inductor compiles."""
    report, stage = Report(), Stage()
    for k, program in enumerate(drawn_programs):
        with stage.rehearsal(k):
            error_in(program, way)
    stage.compile_kernels()
    failed = []
    for k, program in enumerate(drawn_programs):
        with stage.performance(k):
            failed += [] if report.note(program, way) else [program]
    report.failures += dict.fromkeys(failure_text(program, way) for program in failed)
    return report


def failure_text(program: Program, way: str = "eager") -> str:
    """A minimized program that differs, as a script with the finding on top."""

    def error_of(candidate: Program) -> Exception | None:
        with Stage().directly() if way in THROUGH_INDUCTOR else contextlib.nullcontext():
            return error_in(candidate, way)

    error = error_of(program)
    if error is None:
        return standalone(program, "differed once, and not when it ran again", way)
    wanted = signature(error)

    def differs_alike(candidate: Program) -> bool:
        other = error_of(candidate)
        return other is not None and signature(other) == wanted

    small = reduced(program, differs_alike)
    return standalone(small, found_text(error_of(small) or error), way)


def error_in(program: Program, way: str) -> Exception | None:
    try:
        check(program, way)
    except Exception as error:
        return error
    return None


def signature(error: Exception) -> str:
    """The kind of a difference or error."""
    if isinstance(error, Difference):
        return error.kind
    first, _, _ = str(error).partition("\n")
    return type(error).__name__ + without_numbers(first)


def found_text(error: Exception) -> str:
    """The header of the script: the difference, or the origin of an error."""
    if isinstance(error, AssertionError):
        return str(error)
    return "".join(traceback.format_exception(error))
