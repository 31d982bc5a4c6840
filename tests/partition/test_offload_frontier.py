"""Three choices for each value: against all of them, on random problems, and on chains that are easy to count."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotgrad.partition.contraction import Contraction
from aotgrad.partition.frontier import Frontier, Rate
from aotgrad.partition.offload_frontier import OffloadFrontier
from aotgrad.partition.problem import NEVER, PRICES, Problem, Solution
from tests.partition.test_frontier import all_solutions, chain, problems


def all_choices(problem: Problem) -> list[Solution]:
    """Each legal set of saved values, with each legal part of it offloaded."""
    found = []
    for solution in all_solutions(problem.without_link()):
        movable = [value for value in solution.saved if problem.transfer[value] != NEVER]
        for count in range(len(movable) + 1):
            found += [problem.solution(solution.saved, away) for away in itertools.combinations(movable, count)]
    return [solution for solution in found if problem.is_legal(solution)]


@st.composite
def offloading(draw, size: int = 5, host: bool = True):
    problem = draw(problems(size))
    times = [draw(st.sampled_from([NEVER, 0, 1, 2, 3, 5, 8])) for _ in range(len(problem))]
    room = draw(st.one_of(st.just(math.inf), st.integers(0, 20))) if host else math.inf
    return replace(problem, transfer=times, hidden=draw(st.integers(0, 12)), host=room)


@settings(max_examples=150, deadline=None)
@given(offloading(host=False), st.integers(1, 20), st.integers(1, 20))
def test_the_cut_is_the_minimum_over_three_choices(problem, bytes_rate, time_rate):
    problem, rate = replace(problem, hidden=0), Rate(bytes_rate, time_rate)
    found = Frontier(problem).at(rate)
    assert problem.is_legal(found)
    assert rate.cost(found) == min(map(rate.cost, all_choices(problem)))


@settings(max_examples=150, deadline=None)
@given(offloading())
def test_more_bytes_never_take_more_time_and_nothing_beats_the_bound(problem):
    frontier, choices = OffloadFrontier(problem), all_choices(problem)
    low, high = frontier.smallest().kept_bytes, frontier.plain.fastest().kept_bytes
    for limit in range(low, high + 2):
        found = frontier.within(limit)
        best = min(s.time for s in choices if s.kept_bytes <= limit)
        assert problem.is_legal(found) and found.kept_bytes <= limit
        assert frontier.bound(limit) - 1e-6 <= best <= found.time
    within_offers = [min(offer.within(limit).time for offer in frontier.offers) for limit in range(low, high + 2)]
    assert frontier.plain.smallest().kept_bytes > low or within_offers == sorted(within_offers, reverse=True)


@settings(max_examples=100, deadline=None)
@given(offloading())
def test_it_is_never_slower_or_larger_than_recomputing_alone(problem):
    frontier, alone = OffloadFrontier(problem), Frontier(problem.without_link())
    assert frontier.smallest().kept_bytes <= alone.smallest().kept_bytes
    assert frontier.fastest().time <= alone.fastest().time
    for limit in range(alone.smallest().kept_bytes, alone.fastest().kept_bytes + 2):
        assert frontier.within(limit).time <= alone.within(limit).time


@settings(max_examples=100, deadline=None)
@given(offloading(host=False), st.integers(1, 20), st.integers(1, 20))
def test_a_contracted_problem_has_the_same_minimum(problem, bytes_rate, time_rate):
    problem, rate = replace(problem, hidden=0), Rate(bytes_rate, time_rate)
    contraction = Contraction.of(problem)
    found = contraction.expand(Frontier(contraction.problem).at(rate))
    assert problem.is_legal(found)
    assert rate.cost(found) == rate.cost(Frontier(problem).at(rate))


@settings(max_examples=100, deadline=None)
@given(offloading(), st.integers(1, 20), st.integers(1, 20))
def test_what_is_chosen_at_a_rate_is_legal_and_no_worse_than_without_the_link(problem, bytes_rate, time_rate):
    rate = Rate(bytes_rate, time_rate)
    found = OffloadFrontier(problem).at(rate)
    assert problem.is_legal(found)
    assert rate.cost(found) <= rate.cost(Frontier(problem.without_link()).at(rate))


def carried_chain(count: int, hidden: int, host: float = math.inf) -> Problem:
    """A chain of values of 8 bytes, each of which takes 4 units of time to recompute, and 6 on the link."""
    return replace(chain(count, rerun=4), transfer=[NEVER] + [6] * (count - 1), hidden=hidden, host=host)


def test_what_the_device_hides_costs_nothing():
    """Nine values: the link carries three in 18 units, the first three; the device holds the other six."""
    found = OffloadFrontier(carried_chain(10, hidden=18)).within(6 * 8)
    assert (found.offloaded, found.recomputed, found.time) == ({1, 2, 3}, frozenset(), 0)
    assert found.saved == set(range(10)) and found.kept_bytes == 48 and found.transfer == 18


def test_what_the_link_cannot_carry_is_recomputed():
    """Recomputing a value takes 4 units; to wait for the link would take 6."""
    found = OffloadFrontier(carried_chain(10, hidden=18)).within(4 * 8)
    assert len(found.offloaded) == 3 and len(found.recomputed) == 2 and found.time == 8


def test_the_device_waits_where_recomputing_takes_longer():
    problem = replace(carried_chain(10, hidden=0), rerun=[NEVER] + [9] * 9)
    found = OffloadFrontier(problem).within(4 * 8)
    assert len(found.offloaded) == 5 and not found.recomputed and found.time == 5 * 6


def test_the_host_has_room_for_two():
    found = OffloadFrontier(carried_chain(10, hidden=100, host=2 * 8)).within(6 * 8)
    assert len(found.offloaded) == 2 and len(found.recomputed) == 1


def test_the_bound_is_met_where_values_divide_evenly():
    frontier = OffloadFrontier(carried_chain(10, hidden=18))
    for kept in range(10):
        assert frontier.bound(kept * 8) == pytest.approx(frontier.within(kept * 8).time, rel=1 / PRICES)


def test_corners_are_better_one_by_one_in_one_of_the_two():
    corners = OffloadFrontier(carried_chain(10, hidden=18)).corners()
    for below, above in itertools.pairwise(corners):
        assert below.kept_bytes < above.kept_bytes and below.time > above.time
    assert (corners[0].kept_bytes, corners[-1].time) == (0, 0)
