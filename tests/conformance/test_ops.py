"""A tenth of the operators and modules, another tenth each day, in the cheap variants.

`python scripts/conformance/ops.py` runs the rest; its results are docs/conformance.md.
"""

from __future__ import annotations

import datetime
import os

import pytest
import torch

from aotgrad.conformance.check import check_subject
from aotgrad.conformance.subjects import find_subjects
from aotgrad.conformance.sweep import Row, Task
from aotgrad.conformance.verdict import Passed, Raised, Refused, Wrong
from tests.conformance.compilers import COMPILERS
from tests.conformance.expectations import outdated, unexpected
from tests.conformance.expected_failures import EXPECTED_FAILURES, TORCH
from tests.conformance.variants import VARIANTS
from tests.device import TYPE

CHEAP = ("static", "non-contiguous", "in-place", "out=", "dynamic")
PARTS = 10
SAMPLES = 2


def part_of_today() -> int:
    """0 to 9: by date, or by the environment."""
    given = os.environ.get("AOTGRAD_CONFORMANCE_PART")
    return datetime.date.today().toordinal() % PARTS if given is None else int(given)


@pytest.mark.timeout(900)
@pytest.mark.skipif(not torch.__version__.startswith(TORCH), reason=f"the expected failures are those of torch {TORCH}")
@pytest.mark.parametrize("variant", CHEAP)
def test_a_tenth_of_the_operators(variant: str, capsys) -> None:
    part = part_of_today()
    with capsys.disabled():
        print(f"\nconformance, {variant}: tenth {part} of the subjects; again with AOTGRAD_CONFORMANCE_PART={part}")
    subjects = find_subjects(TYPE)
    rows = []
    for name in sorted(subjects)[part::PARTS]:
        verdict = check_subject(subjects[name], VARIANTS[variant], COMPILERS["aotgrad"], SAMPLES)
        rows.append(Row(Task("aotgrad", variant, name, SAMPLES), verdict, 0.0))
    assert sum(isinstance(row.verdict, Passed) for row in rows) > 10
    assert unexpected(rows) == []
    assert [line for line in outdated(rows) if variant in line.variants or not line.variants] == []


def test_the_table_names_what_there_is() -> None:
    names = [line.subject for line in EXPECTED_FAILURES]
    assert set(names) <= set(find_subjects(TYPE))
    assert names == sorted(names)
    assert all(set(line.variants) <= set(VARIANTS) for line in EXPECTED_FAILURES)


def row(subject: str, verdict, variant: str = "static") -> Row:
    return Row(Task("aotgrad", variant, subject, SAMPLES), verdict, 0.0)


def test_what_is_unexpected() -> None:
    fine = [row("mul", Passed()), row("to_sparse", Refused("values")), row("addbmm", Passed())]
    bad = [row("mul", Wrong("output 0")), row("to_sparse", Raised("other")), row("addbmm", Refused("no"))]
    assert unexpected([*fine, *bad]) == bad


def test_what_is_outdated() -> None:
    assert outdated([row("to_sparse", Refused("values")), row("to_sparse", Passed(), "bool")]) == []
    (line,) = outdated([row("to_sparse", Passed()), row("mul", Passed()), row("addbmm", Passed())])
    assert line.subject == "to_sparse"
