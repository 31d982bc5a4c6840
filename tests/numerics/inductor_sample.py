"""Which tests through Inductor are run: one of those that differ only in the way to it, or in how the result is used.

test[case-0-once-aot_inductor]      run            test[case-1-once-aot_inductor]
test[case-0-once-inductor]                         test[case-1-once-inductor]          run
test[case-0-retained-aot_inductor]                 test[case-1-retained-aot_inductor]

A C++ compiler takes most of the suite's time, and each of these tests has kernels of its own. `AOTGRAD_TEST_ALL=1` runs
all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import pytest

from .against_eager import THROUGH_INDUCTOR


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """All but one of each group; which one that is goes round in the groups of a test, so that each way and use is met."""
    groups: dict[Hashable, list[pytest.Item]] = defaultdict(list)
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("backend") in THROUGH_INDUCTOR:
            others = frozenset((name, id(value)) for name, value in parameters.items() if name not in ("backend", "use"))
            groups[item.path, item.originalname, others].append(item)
    rounds: Counter[Hashable] = Counter()
    found = []
    for (*test, _), group in groups.items():
        chosen = group[rounds[tuple(test)] % len(group)]
        rounds[tuple(test)] += 1
        found += [item for item in group if item is not chosen]
    return found
