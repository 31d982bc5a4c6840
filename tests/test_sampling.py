"""Of tests with many cases each day runs a share; of cases through Inductor, each runs in one way, which rotates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from .numerics.against_eager import ALL, EXACT, THROUGH_INDUCTOR
from .numerics.conftest import HALVES
from .sampling import MANY, MANY_THROUGH_INDUCTOR, SHARES, WAYS_THROUGH_INDUCTOR, left_out

USES = ("once", "twice")
FEW = [f"case {number}" for number in range(MANY_THROUGH_INDUCTOR)]
SOME = [f"case {number}" for number in range(20 * MANY_THROUGH_INDUCTOR)]


def items_of(
    parameters: Sequence[dict[str, Any]], name: str = "test_one", path: str = "tests/numerics/test_file.py"
) -> list[Any]:
    return [
        SimpleNamespace(
            path=Path(path), originalname=name, nodeid=f"{path}::{name}[{each}]", callspec=SimpleNamespace(params=each)
        )
        for each in parameters
    ]


def in_all_ways(cases: Sequence[str]) -> list[Any]:
    product = itertools.product(cases, USES, ALL)
    return items_of([{"case": case, "backend": backend, "use": use} for case, use, backend in product])


def run(items: Sequence[Any], day: int) -> list[dict[str, Any]]:
    """The parameters of the tests of a day."""
    gone = {item.nodeid for item in left_out(items, day)}
    return [item.callspec.params for item in items if item.nodeid not in gone]


def through_inductor(run: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in run if each["backend"] in THROUGH_INDUCTOR]


def test_the_ways_through_inductor_are_known() -> None:
    assert set(THROUGH_INDUCTOR) <= set(WAYS_THROUGH_INDUCTOR)
    assert set(HALVES).intersection(WAYS_THROUGH_INDUCTOR) == {"inductor halves"}


@pytest.mark.parametrize("day", range(2 * SHARES))
def test_each_of_few_cases_runs_in_one_way(day: int) -> None:
    assert [each["case"] for each in through_inductor(run(in_all_ways(FEW), day))] == FEW


def test_each_of_many_cases_runs_once_in_a_turn() -> None:
    items = in_all_ways(SOME)
    days = [run(items, day) for day in range(SHARES)]
    assert sorted(each["case"] for day in days for each in through_inductor(day)) == sorted(SOME)
    for day in days:
        assert len(through_inductor(day)) <= len(SOME) // 2
        assert {(each["backend"], each["use"]) for each in through_inductor(day)} == set(
            itertools.product(THROUGH_INDUCTOR, USES)
        )


def test_each_case_runs_in_all_ways_after_some_turns() -> None:
    ways = list(itertools.product(THROUGH_INDUCTOR, USES))
    items = in_all_ways(SOME)
    seen = [through_inductor(run(items, day)) for day in range(SHARES * len(ways))]
    assert {(each["case"], each["backend"], each["use"]) for day in seen for each in day} == {
        (case, *way) for case in SOME for way in ways
    }


def test_many_cases_without_inductor_are_shared_out() -> None:
    items = items_of([{"case": case, "backend": way} for case in range(10 * MANY) for way in EXACT])
    days = [run(items, day) for day in range(SHARES)]
    assert sorted(map(str, itertools.chain(*days))) == sorted(str(item.callspec.params) for item in items)
    assert all({each["backend"] for each in day} == set(EXACT) for day in days)


def test_few_cases_without_inductor_all_run() -> None:
    assert left_out(items_of([{"case": case} for case in range(MANY)]), 0) == []


def test_all_of_a_folder_that_is_run_whole() -> None:
    assert left_out(items_of([{"case": case} for case in SOME], path="tests/golden/test_golden.py"), 0) == []


def test_a_test_that_is_alone_is_run() -> None:
    no_parameters: Any = SimpleNamespace(path=Path("tests"), originalname="no parameters", nodeid="no parameters")
    for day in range(SHARES):
        assert left_out(in_all_ways(SOME)[-1:], day) == left_out([no_parameters], day) == []


def test_a_test_that_has_only_a_way_is_run_in_all_ways() -> None:
    items = items_of([{"way": way} for way in ("inductor halves", "dynamo, inductor halves")])
    assert left_out(items, 0) == left_out(items, 1) == []


def test_a_test_may_say_by_its_name_that_it_uses_inductor() -> None:
    def of(name: str, cases: int) -> list[Any]:
        return items_of([{"case": case} for case in range(cases)], name)

    few, more = MANY_THROUGH_INDUCTOR, 20 * MANY_THROUGH_INDUCTOR
    assert left_out(of("test_inductor_trains", few), 0) == left_out(of("test_it_trains", MANY), 0) == []
    assert left_out(of("test_inductor_trains", more), 0)
