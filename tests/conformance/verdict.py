"""What became of one subject in one variant.

>>> from_json(to_json(Wrong("output 0: values")))
Wrong(reason='output 0: values')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union


@dataclass(frozen=True)
class Passed:
    """Every sample does what it does in eager."""

    reason: str = ""


@dataclass(frozen=True)
class Refused:
    """A clear error at compile time says what is not supported."""

    reason: str


@dataclass(frozen=True)
class RanEagerly:
    """A warning says that the original function ran in place of a plan."""

    reason: str


@dataclass(frozen=True)
class OtherStrides:
    """An output or a gradient lies in memory otherwise than in eager; nothing else differs."""

    reason: str


@dataclass(frozen=True)
class Wrong:
    """Silently wrong: a value, a `None`, a flag, an alias or the state of an argument differs."""

    reason: str


@dataclass(frozen=True)
class Raised:
    """An error that eager does not raise, and that is no refusal."""

    reason: str


@dataclass(frozen=True)
class Crashed:
    """The process died."""

    reason: str


@dataclass(frozen=True)
class TimedOut:
    """It took longer than the time limit."""

    reason: str


@dataclass(frozen=True)
class NotSupported:
    """There is nothing to compare: eager raises, or there is no sample for the variant. Not counted."""

    reason: str


Verdict = Union[Passed, Refused, RanEagerly, OtherStrides, Wrong, Raised, Crashed, TimedOut, NotSupported]

KINDS = (NotSupported, Passed, OtherStrides, RanEagerly, Refused, Raised, TimedOut, Crashed, Wrong)
"""From the best to the worst: a subject's verdict is the worst of its samples'. Where a sample passes, it passes."""

BY_NAME = {kind.__name__: kind for kind in KINDS}


def worst(verdicts: list[Verdict]) -> Verdict:
    """The first of the worst ones.

    >>> worst([Passed(), Refused("a"), Refused("b")])
    Refused(reason='a')
    """
    return max(verdicts, key=lambda verdict: KINDS.index(type(verdict)), default=NotSupported("no sample"))


def to_json(verdict: Verdict) -> dict[str, str]:
    return {"verdict": type(verdict).__name__, "reason": verdict.reason}


def from_json(row: Mapping[str, Any]) -> Verdict:
    return BY_NAME[row["verdict"]](row["reason"])
