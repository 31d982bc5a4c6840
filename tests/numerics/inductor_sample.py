"""Selects tests through Inductor: one of those that differ only in the way to it, or in the use of the result.

test[case-0-once-aot_inductor]      run            test[case-1-once-aot_inductor]
test[case-0-once-inductor]                         test[case-1-once-inductor]          run
test[case-0-retained-aot_inductor]                 test[case-1-retained-aot_inductor]

If many cases of a test remain, one half runs, and the other half on the next day: `AOTGRAD_INDUCTOR_HALF` selects it.
The C++ compiler takes most of the suite's time, and each of these tests has its own kernels. `AOTGRAD_TEST_ALL=1` runs
all of them.
"""

from __future__ import annotations

import datetime
import os
from collections import defaultdict
from collections.abc import Hashable, Sequence

import pytest

from .against_eager import THROUGH_INDUCTOR

HALVES = 2
MANY = 24
"""Cases of one test. Where there are more, they differ less from each other."""


WAYS = ("backend", "halves", "way")
"""The names of parameters that say how a test compiles. A test with no other parameter than `way` runs in all ways."""

WAYS_THROUGH_INDUCTOR = (*THROUGH_INDUCTOR, "inductor halves", "dynamo, inductor halves")


def half() -> int:
    """0 or 1: by date, or by the environment."""
    given = os.environ.get("AOTGRAD_INDUCTOR_HALF")
    return datetime.date.today().toordinal() % HALVES if given is None else int(given)


def left_out(items: Sequence[pytest.Item], half: int) -> list[pytest.Item]:
    """The tests to deselect: all but one of each case, and one half of the cases of a large test.

    The kept one rotates, so that each way and use occurs.
    """
    tests: dict[Hashable, dict[Hashable, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if (case := case_through_inductor(item)) is not None:
            tests[item.path, item.originalname][case].append(item)
    found: list[pytest.Item] = []
    for cases in tests.values():
        are_many = len(cases) > MANY
        for place, alike in enumerate(cases.values()):
            turn = place // HALVES if are_many else place
            chosen = None if are_many and place % HALVES != half else alike[turn % len(alike)]
            found += [item for item in alike if item is not chosen]
    return found


def case_through_inductor(item: pytest.Item) -> Hashable | None:
    """The parameters of a test without the way and the use, or `None` if it does not use Inductor or is alone.

    A test may say by its name that it uses Inductor.
    """
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    ways = [parameters[name] for name in WAYS if name in parameters]
    if ways and not any(isinstance(way, str) and way in WAYS_THROUGH_INDUCTOR for way in ways):
        return None
    if (not ways and "inductor" not in item.originalname) or set(parameters) == {"way"}:
        return None
    return frozenset((name, id(value)) for name, value in parameters.items() if name not in (*WAYS, "use"))
