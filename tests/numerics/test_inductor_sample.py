"""The sample of the tests through Inductor has each case, and each way to it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from .against_eager import ALL, EXACT, THROUGH_INDUCTOR
from .conftest import HALVES as HALVES_OF_PLANS
from .inductor_sample import HALVES, MANY, left_out

CASES = ("copies", "views", "writes", "reads")
USES = ("once", "twice")


def items_of_a_test(name: str, cases: Sequence[str] = CASES) -> list[Any]:
    parameters = [
        {"case": case, "backend": backend, "use": use} for case, use, backend in itertools.product(cases, USES, ALL)
    ]
    return [SimpleNamespace(path="tests", originalname=name, callspec=SimpleNamespace(params=each)) for each in parameters]


def run_through_inductor(items: Sequence[Any], half: int) -> list[dict[str, Any]]:
    """The parameters of the tests that are left."""
    gone = left_out(items, half)
    run = [item.callspec.params for item in items if item not in gone]
    through_inductor = [each for each in run if each["backend"] in THROUGH_INDUCTOR]
    assert len(run) - len(through_inductor) == len(items) * len(EXACT) // len(ALL)
    return through_inductor


@pytest.mark.parametrize("half", range(HALVES))
def test_each_case_and_each_way_is_run(half: int) -> None:
    run = run_through_inductor(items_of_a_test("test_one"), half)
    assert [each["case"] for each in run] == list(CASES)
    assert {(each["backend"], each["use"]) for each in run} == set(itertools.product(THROUGH_INDUCTOR, USES))


def test_of_many_cases_each_half_is_run_with_each_way() -> None:
    many = [f"case {number}" for number in range(MANY + 1)]
    halves = [run_through_inductor(items_of_a_test("test_one", many), half) for half in range(HALVES)]
    assert sorted(each["case"] for run in halves for each in run) == sorted(many)
    for run in halves:
        assert len(run) <= len(many) // HALVES + 1
        assert {(each["backend"], each["use"]) for each in run} == set(itertools.product(THROUGH_INDUCTOR, USES))


def test_a_test_that_is_alone_is_run() -> None:
    items = items_of_a_test("test_one")
    assert left_out(items[-1:], 0) == left_out([SimpleNamespace(path="tests", originalname="no parameters")], 0) == []


def test_halves_of_inductor_are_counted() -> None:
    parameters = [{"case": number, "halves": kind} for number in range(MANY + 1) for kind in HALVES_OF_PLANS]
    items = [
        SimpleNamespace(path="tests", originalname="test_one", callspec=SimpleNamespace(params=each)) for each in parameters
    ]
    gone = [item.callspec.params for item in left_out(items, 0)]
    assert [each["case"] for each in gone] == list(range(1, MANY, 2))
    assert {each["halves"] for each in gone} == {"inductor halves"}


def test_a_test_that_has_only_a_way_is_run_in_all_ways() -> None:
    items = [
        SimpleNamespace(path="tests", originalname="test_one", callspec=SimpleNamespace(params={"way": way}))
        for way in ("inductor halves", "dynamo, inductor halves")
    ]
    assert left_out(items, 0) == left_out(items, 1) == []


def test_a_test_may_say_by_its_name_that_it_uses_inductor() -> None:
    def items(name: str, cases: int) -> list[Any]:
        parameters = [SimpleNamespace(params={"case": case}) for case in range(cases)]
        return [SimpleNamespace(path="tests", originalname=name, callspec=each) for each in parameters]

    assert left_out(items("test_inductor_trains", MANY), 0) == left_out(items("test_it_trains", MANY + 1), 0) == []
    gone = left_out(items("test_inductor_trains", MANY + 1), 0)
    assert [item.callspec.params["case"] for item in gone] == list(range(1, MANY, 2))
