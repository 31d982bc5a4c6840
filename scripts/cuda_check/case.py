"""What is checked: a case, what it needs of the machine, and what came of it.

Case("dropout", run, seconds=120)       run() returns an Outcome, in a process of its own
Outcome(problems=["gradient of w: ..."], figures={"error": "3e-07"})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Need(Enum):
    """What a case needs besides a device; its value says what is missing where it is not there."""

    GPU = "needs a real GPU"
    TRITON = "needs Triton, which Inductor compiles with"
    TWO_DEVICES = "needs two devices"


class Verdict(Enum):
    """What came of a case. `KNOWN`: it fails, for a reason that is known."""

    PASS = "PASS"
    FAIL = "FAIL"
    KNOWN = "KNOWN"
    SKIP = "SKIP"


@dataclass(frozen=True)
class Outcome:
    """What a case found: what is wrong, and figures for the report, by the name of their column."""

    problems: Sequence[str] = ()
    figures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One row of the report.

    Attributes:
        name: of the row.
        run: what is checked; runs in a process of its own, and may raise.
        seconds: the time limit of the process.
        needs: what the machine must have.
        known: why it fails, where the reason is known.
        alone: no other case runs beside it, since it measures time or memory.
    """

    name: str
    run: Callable[[], Outcome]
    seconds: int = 120
    needs: frozenset[Need] = frozenset()
    known: str | None = None
    alone: bool = False


@dataclass(frozen=True)
class Row:
    """A case with its verdict."""

    part: int
    case: str
    verdict: Verdict
    seconds: float
    outcome: Outcome

    @property
    def text(self) -> str:
        """What is wrong, or the figures."""
        figures = ", ".join(f"{name} {value}" for name, value in self.outcome.figures.items())
        return "; ".join([*self.outcome.problems, *([figures] if figures else [])])
