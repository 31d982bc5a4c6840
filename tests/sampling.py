"""The tests of a day: of a test with many cases, a quarter, which rotates by date; of cases through Inductor, one way each.

    test[case-0-once-aot_inductor]      run            test[case-1-once-aot_inductor]
    test[case-0-once-inductor]                         test[case-1-once-inductor]          run
    test[case-0-retained-aot_inductor]                 test[case-1-retained-aot_inductor]

So the suite takes less than half of its time, most of which is the C++ compiler's. Every case runs once in four days, and
in each of its ways after a few turns. `AOTGRAD_TEST_ALL=1` runs all tests, `AOTGRAD_TEST_DAY=k` those of another day, and
`AOTGRAD_TEST_EVERY=n` every n-th test.
"""

from __future__ import annotations

import datetime
import os
import zlib
from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence

import pytest

SHARES = 4
MANY = 8
MANY_THROUGH_INDUCTOR = 2
"""Cases of one test. Where there are more, they differ less from each other."""

WHOLE = ("test_layering.py", "test_docs.py", "golden", "inspect", "torch_compat", "export")
"""Files and folders whose tests all run: they take no time, or compare with what the repository has of each."""

WAYS = ("backend", "halves", "way")
"""The names of parameters that say how a test compiles. A test with no other parameter than `way` runs in all ways."""

WAYS_THROUGH_INDUCTOR = ("aot_inductor", "inductor", "inductor halves", "dynamo, inductor halves")


COLLECTED = pytest.StashKey[list[str]]()
"""The ids of all collected tests, also of those that do not run today."""


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what does not run today."""
    config.stash[COLLECTED] = [item.nodeid for item in items]
    if (every := int(os.environ.get("AOTGRAD_TEST_EVERY", "1"))) > 1:
        deselect(config, items, [item for k, item in enumerate(items) if k % every])
    elif os.environ.get("AOTGRAD_TEST_ALL") != "1":
        deselect(config, items, left_out(items, today()))


def today() -> int:
    """The number of the day, by date or by the environment."""
    return int(os.environ.get("AOTGRAD_TEST_DAY") or datetime.date.today().toordinal())


def deselect(config: pytest.Config, items: list[pytest.Item], unwanted: Collection[pytest.Item]) -> None:
    """Take the unwanted tests from `items`."""
    gone = set(unwanted)
    config.hook.pytest_deselected(items=list(unwanted))
    items[:] = [item for item in items if item not in gone]


def left_out(items: Sequence[pytest.Item], day: int) -> list[pytest.Item]:
    """The tests that do not run on a day. One that is collected alone always runs."""
    tests: dict[Hashable, dict[Hashable, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        case = case_through_inductor(item)
        if case is not None:
            tests[item.path, item.originalname, MANY_THROUGH_INDUCTOR][case].append(item)
        elif not set(WHOLE).intersection(item.path.parts):
            tests[item.path, item.originalname, MANY][item.nodeid].append(item)
    found: list[pytest.Item] = []
    for (_, _, many), cases in tests.items():
        for alike in cases.values():
            turn, place = divmod(day + zlib.crc32(alike[0].nodeid.encode()), SHARES)
            chosen = alike[turn % len(alike)] if place == 0 or len(cases) <= many else None
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
