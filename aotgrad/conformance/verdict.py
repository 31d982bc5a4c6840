"""The verdict on one subject in one variant.

>>> from_json(to_json(Wrong("output 0: values")))
Wrong(reason='output 0: values')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SubjectVerdict:
    """One of the classes below, with a `reason`."""

    reason: str = ""

    @property
    def fails(self) -> bool:
        """Whether something is wrong."""
        return not isinstance(self, (Passed, NotSupported))


class Passed(SubjectVerdict):
    """Every sample behaves as in eager."""


class Refused(SubjectVerdict):
    """A clear error at compile time names what is not supported."""


class FellBack(SubjectVerdict):
    """A warning says that the original function ran in place of a plan."""


class BreaksContract(SubjectVerdict):
    """The backend does not do what `docs/backends.md` asks of it; the reason says which result of which graph is wrong."""


class OtherStrides(SubjectVerdict):
    """An output or a gradient has another layout than in eager; nothing else differs."""


class Wrong(SubjectVerdict):
    """Silently wrong: a value, a `None`, a flag, an alias or the state of an argument differs."""


class Raised(SubjectVerdict):
    """An error that eager does not raise, and which is no refusal."""


class Crashed(SubjectVerdict):
    """The process died."""


class TimedOut(SubjectVerdict):
    """It took longer than the time limit."""


class NotSupported(SubjectVerdict):
    """Nothing to compare: eager raises, or the variant has no sample. Not counted."""


class Inherited(NotSupported):
    """The same goes wrong with the eager backend, and so is not the fault of the one under test. Not counted."""


VERDICTS: tuple[type[SubjectVerdict], ...] = (
    NotSupported,
    Passed,
    OtherStrides,
    FellBack,
    Refused,
    BreaksContract,
    Raised,
    TimedOut,
    Crashed,
    Wrong,
)
"""From the best to the worst: a subject's verdict is the worst of its samples'. Where a sample passes, it passes."""

BY_NAME = {kind.__name__: kind for kind in (*VERDICTS, Inherited)}


def worst(verdicts: list[SubjectVerdict]) -> SubjectVerdict:
    """The first of the worst verdicts.

    >>> worst([Passed(), Refused("a"), Refused("b")])
    Refused(reason='a')
    """
    return max(verdicts, key=lambda verdict: VERDICTS.index(type(verdict)), default=NotSupported("no sample"))


def to_json(verdict: SubjectVerdict) -> dict[str, str]:
    return {"verdict": type(verdict).__name__, "reason": verdict.reason}


def from_json(row: Mapping[str, Any]) -> SubjectVerdict:
    return BY_NAME[row["verdict"]](row["reason"])
