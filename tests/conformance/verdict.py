"""The verdict on one subject in one variant.

>>> from_json(to_json(Wrong("output 0: values")))
Wrong(reason='output 0: values')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """One of the classes below, with a `reason`."""

    reason: str = ""


class Passed(Verdict):
    """Every sample behaves as in eager."""


class Refused(Verdict):
    """A clear error at compile time names what is not supported."""


class RanEagerly(Verdict):
    """A warning says that the original function ran in place of a plan."""


class OtherStrides(Verdict):
    """An output or a gradient has another layout than in eager; nothing else differs."""


class Wrong(Verdict):
    """Silently wrong: a value, a `None`, a flag, an alias or the state of an argument differs."""


class Raised(Verdict):
    """An error that eager does not raise, and which is no refusal."""


class Crashed(Verdict):
    """The process died."""


class TimedOut(Verdict):
    """It took longer than the time limit."""


class NotSupported(Verdict):
    """Nothing to compare: eager raises, or the variant has no sample. Not counted."""


KINDS: tuple[type[Verdict], ...] = (
    NotSupported,
    Passed,
    OtherStrides,
    RanEagerly,
    Refused,
    Raised,
    TimedOut,
    Crashed,
    Wrong,
)
"""From the best to the worst: a subject's verdict is the worst of its samples'. Where a sample passes, it passes."""

BY_NAME = {kind.__name__: kind for kind in KINDS}


def worst(verdicts: list[Verdict]) -> Verdict:
    """The first of the worst verdicts.

    >>> worst([Passed(), Refused("a"), Refused("b")])
    Refused(reason='a')
    """
    return max(verdicts, key=lambda verdict: KINDS.index(type(verdict)), default=NotSupported("no sample"))


def to_json(verdict: Verdict) -> dict[str, str]:
    return {"verdict": type(verdict).__name__, "reason": verdict.reason}


def from_json(row: Mapping[str, Any]) -> Verdict:
    return BY_NAME[row["verdict"]](row["reason"])
