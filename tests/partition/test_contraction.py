"""The contracted problem has the answers of the original one: against all choices, on random problems."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aotgrad.partition.contraction import Contraction
from aotgrad.partition.frontier import Frontier, Rate
from aotgrad.partition.problem import NEVER, Problem
from tests.partition.test_frontier import all_solutions, chain, problems


@settings(max_examples=300, deadline=None)
@given(problems(), st.integers(1, 20), st.integers(1, 20))
def test_no_rate_loses(problem, bytes_rate, time_rate):
    rate, contraction = Rate(bytes_rate, time_rate), Contraction.of(problem)
    small = Frontier(contraction.problem).at(rate)
    found = contraction.expand(small)
    assert problem.is_legal(found)
    assert (found.kept_bytes, found.time) == (small.kept_bytes, small.time)
    assert rate.cost(found) == min(rate.cost(solution) for solution in all_solutions(problem))


@settings(max_examples=300, deadline=None)
@given(problems())
def test_no_limit_loses(problem):
    contraction = Contraction.of(problem)
    left = all_solutions(contraction.problem)
    for solution in all_solutions(problem):
        assert any(s.kept_bytes <= solution.kept_bytes and s.time <= solution.time for s in left)


def test_what_is_read_once_and_is_no_smaller_is_merged():
    problem = chain(4)
    read_at_the_end = Problem(**{**problem.__dict__, "wanted": [3]})
    contraction = Contraction.of(read_at_the_end)
    assert contraction.values == [3] and contraction.free == {0}
    assert contraction.problem.rerun == [3] and contraction.problem.held == [8]


def test_a_smaller_value_is_not_merged_into_a_larger_one():
    problem = Problem([1, 8], [0, 0], [True] * 2, [NEVER, 1], [0, 0], [[], [0]], [1])
    assert Contraction.of(problem).values == [0, 1]


def test_what_may_neither_be_saved_nor_run_again_keeps_its_reader_from_it():
    problem = Problem([8, 8], [0, 0], [False, True], [NEVER, 1], [0, 0], [[], [0]], [1])
    contraction = Contraction.of(problem)
    assert contraction.values == [1] and contraction.problem.rerun == [NEVER]
