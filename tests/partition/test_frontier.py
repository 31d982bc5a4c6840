"""The exact minimum at each rate, the hull, and limits in bytes: against all choices, on random problems."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotgrad.partition.filling import Gains, Losses, fill, loss
from aotgrad.partition.frontier import Frontier, Rate, Unsolvable
from aotgrad.partition.problem import NEVER, Problem, Solution


def all_solutions(problem: Problem) -> list[Solution]:
    savable = [value for value in range(len(problem)) if problem.savable[value]]
    subsets = itertools.chain.from_iterable(itertools.combinations(savable, k) for k in range(len(savable) + 1))
    solutions = (problem.solution(set(subset)) for subset in subsets)
    return [solution for solution in solutions if problem.is_legal(solution)]


@st.composite
def problems(draw, size: int = 7):
    count = draw(st.integers(1, size))
    amounts = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    held, saving, rerun, state = draw(amounts), draw(amounts), draw(amounts), draw(amounts)
    flags = st.lists(st.booleans(), min_size=count, max_size=count)
    random_op, extra, fixed, unsavable = draw(flags), draw(flags), draw(flags), draw(flags)
    parents = [draw(st.lists(st.integers(0, k - 1), unique=True, max_size=3)) if k else [] for k in range(count)]
    wanted = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1))
    return Problem(
        held=held,
        saving=[s if e else 0 for s, e in zip(saving, extra, strict=True)],
        savable=[not u or f or not p for u, f, p in zip(unsavable, fixed, parents, strict=True)],
        rerun=[NEVER if f or not p else t for t, f, p in zip(rerun, fixed, parents, strict=True)],
        state=[s if r else 0 for s, r in zip(state, random_op, strict=True)],
        parents=parents,
        wanted=wanted,
    )


def chain(count: int, held: int = 8, rerun: int = 1) -> Problem:
    """`count` values, each computed from its predecessor; the first can only be saved, the backward reads all."""
    return Problem(
        held=[0] + [held] * (count - 1),
        saving=[0] * count,
        savable=[True] * count,
        rerun=[NEVER] + [rerun] * (count - 1),
        state=[0] * count,
        parents=[[], *([k] for k in range(count - 1))],
        wanted=list(range(count)),
    )


@settings(max_examples=200, deadline=None)
@given(problems(), st.integers(1, 20), st.integers(1, 20))
def test_the_cut_is_the_minimum_over_all_choices(problem, bytes_rate, time_rate):
    rate = Rate(bytes_rate, time_rate)
    found = Frontier(problem).at(rate)
    assert problem.is_legal(found)
    assert rate.cost(found) == min(rate.cost(solution) for solution in all_solutions(problem))


@settings(max_examples=100, deadline=None)
@given(problems())
def test_the_ends_are_the_smallest_and_the_fastest(problem):
    frontier, solutions = Frontier(problem), all_solutions(problem)
    smallest, fastest = frontier.smallest(), frontier.fastest()
    assert (smallest.kept_bytes, smallest.time) == min((s.kept_bytes, s.time) for s in solutions)
    assert (fastest.time, fastest.kept_bytes) == min((s.time, s.kept_bytes) for s in solutions)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_corners_rise_and_nothing_lies_below_the_line_through_neighbours(problem):
    corners = Frontier(problem).corners()
    for below, above in itertools.pairwise(corners):
        assert below.kept_bytes < above.kept_bytes and below.time > above.time
        rate = Rate(below.time - above.time, above.kept_bytes - below.kept_bytes)
        assert rate.cost(below) == min(rate.cost(solution) for solution in all_solutions(problem))


@settings(max_examples=150, deadline=None)
@given(problems())
def test_more_bytes_never_take_more_time(problem):
    frontier = Frontier(problem)
    low, high = frontier.smallest().kept_bytes, frontier.fastest().kept_bytes
    found = [frontier.within(limit) for limit in range(low, high + 2)]
    for limit, solution in enumerate(found, start=low):
        assert problem.is_legal(solution) and solution.kept_bytes <= limit
        assert solution.time >= min(s.time for s in all_solutions(problem) if s.kept_bytes <= limit)
        assert solution.time >= frontier.bound(limit) - 1e-6
    times = [solution.time for solution in found]
    assert times == sorted(times, reverse=True)


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(1, 20), st.integers(1, 20))
def test_the_minimum_at_a_rate_is_kept_unless_it_exceeds_the_limit(problem, bytes_rate, time_rate):
    frontier, rate = Frontier(problem), Rate(bytes_rate, time_rate)
    minimum, lowest = frontier.at(rate), frontier.smallest().kept_bytes
    for limit in range(lowest - 1, minimum.kept_bytes + 2):
        found = frontier.at_most(rate, limit)
        assert problem.is_legal(found)
        assert (found == minimum) == (not lowest <= limit < minimum.kept_bytes)
        if found != minimum:
            assert found.kept_bytes <= limit and found.rank <= frontier.within(limit).rank


def test_a_slight_excess_goes_with_one_value_less():
    """Logits and two reductions are saved for a softmax, which takes 64 bytes more than to save the softmax."""
    large, reduction = 1_000_000, 20_000
    problem = Problem(
        held=[0, 320, 32, 32, 320, *[8192] * 3],
        saving=[0, 0, 0, 0, 14_000, *[0] * 3],
        savable=[True] * 8,
        rerun=[NEVER, NEVER, reduction, reduction, 10, *[large] * 3],
        state=[0] * 8,
        parents=[[], [], [1], [1, 2], [1, 2, 3], *[[0]] * 3],
        wanted=[4, 5, 6, 7],
    )
    frontier, rate = Frontier(problem), Rate(1, 1)
    minimum = frontier.at(rate)
    assert (minimum.saved, minimum.kept_bytes) == ({1, 2, 3, 5, 6, 7}, 24_960)
    found = frontier.at_most(rate, minimum.kept_bytes - 1)
    assert (found.saved, found.time) == ({4, 5, 6, 7}, 14_000)
    assert frontier.within(minimum.kept_bytes - 1).time > reduction


def test_a_limit_that_nothing_fits_gives_the_smallest():
    problem = Problem([5], [0], [True], [NEVER], [0], [[]], [0])
    assert Frontier(problem).within(3).kept_bytes == 5


def test_a_value_that_can_be_neither_saved_nor_run_again():
    with pytest.raises(Unsolvable):
        Frontier(Problem([5], [0], [False], [NEVER], [0], [[]], [0])).smallest()


def test_equal_values_are_divided_by_position():
    """All values of a chain cost the same; with room for three of nine, the last three are saved."""
    problem = chain(10)
    assert Frontier(problem).within(24).saved == {0, 7, 8, 9}


def test_states_count_where_the_value_runs_again():
    problem = Problem([0, 100], [0, 0], [True, True], [NEVER, 1], [0, 30], [[], [0]], [1])
    assert Frontier(problem).smallest().kept_bytes == 30
    assert Frontier(problem).within(29).kept_bytes == 30
    assert Frontier(problem).within(100).saved == {1}


def test_filling_uses_what_is_left():
    problem = chain(4, held=8, rerun=3)
    start = problem.solution({0})
    assert fill(problem, start, 17).kept_bytes == 16
    assert fill(problem, start, 7) == start


def test_saving_a_value_spares_what_only_it_needs():
    problem = Problem([0, 8, 8], [0, 0, 0], [True] * 3, [NEVER, 5, 7], [0, 0, 0], [[], [0], [1]], [2])
    gains = Gains(problem, problem.solution({0}))
    assert gains.spared(2) == [2, 1] and gains.gain(2) == 12 and gains.gain(1) == 5


@settings(max_examples=200, deadline=None)
@given(problems(), st.lists(st.sets(st.integers(0, 6)), min_size=1, max_size=4))
def test_losses_are_remembered_only_where_nothing_near_changed(problem, choices):
    losses = Losses(problem)
    for chosen in choices:
        solution = problem.solution({v for v in range(len(problem)) if v in chosen or problem.rerun[v] == NEVER})
        losses.move_to(solution)
        assert {v: losses.of(v) for v in solution.saved} == {v: loss(problem, solution, v) for v in solution.saved}
