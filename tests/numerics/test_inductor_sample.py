"""The sample of the tests through Inductor has each case, and each way to it."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

from .against_eager import ALL, EXACT, THROUGH_INDUCTOR
from .inductor_sample import left_out

CASES = ("copies", "views", "writes", "reads")
USES = ("once", "twice")


def items_of_a_test(name: str) -> list[Any]:
    parameters = [
        {"case": case, "backend": backend, "use": use} for case, use, backend in itertools.product(CASES, USES, ALL)
    ]
    return [SimpleNamespace(path="tests", originalname=name, callspec=SimpleNamespace(params=each)) for each in parameters]


def test_each_case_and_each_way_is_run() -> None:
    items = items_of_a_test("test_one") + items_of_a_test("test_other")
    gone = left_out(items)
    for name in ("test_one", "test_other"):
        run = [item.callspec.params for item in items if item not in gone and item.originalname == name]
        through_inductor = [each for each in run if each["backend"] in THROUGH_INDUCTOR]
        assert [each["case"] for each in through_inductor] == list(CASES)
        assert {(each["backend"], each["use"]) for each in through_inductor} == set(
            itertools.product(THROUGH_INDUCTOR, USES)
        )
        assert len(run) - len(through_inductor) == len(EXACT) * len(CASES) * len(USES)


def test_a_test_that_is_alone_is_run() -> None:
    items = items_of_a_test("test_one")
    assert left_out(items[-1:]) == left_out([SimpleNamespace(path="tests", originalname="test_without_parameters")]) == []
