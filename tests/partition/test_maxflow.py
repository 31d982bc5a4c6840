"""The cut has the value that brute force finds, and its side is the smallest of all minimum cuts."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from aotgrad.partition.maxflow import INFINITE, minimum_cut


def cut_value(edges, side) -> int:
    return sum(capacity for tail, head, capacity in edges if tail in side and head not in side)


def all_sides(num_nodes):
    inner = range(1, num_nodes - 1)
    for count in range(num_nodes - 1):
        for chosen in itertools.combinations(inner, count):
            yield frozenset({0, *chosen})


@st.composite
def graphs(draw):
    num_nodes = draw(st.integers(2, 7))
    node = st.integers(0, num_nodes - 1)
    capacity = st.one_of(st.integers(0, 9), st.just(INFINITE))
    edges = draw(st.lists(st.tuples(node, node, capacity), max_size=16))
    return num_nodes, edges


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_finds_the_smallest_side_of_all_minimum_cuts(graph):
    num_nodes, edges = graph
    value, side = minimum_cut(num_nodes, edges, 0, num_nodes - 1)
    values = {other: cut_value(edges, other) for other in all_sides(num_nodes)}
    best = [other for other in values if values[other] == min(values.values())]
    assert value == min(values.values())
    assert side == frozenset.intersection(*best)


def test_one_edge():
    assert minimum_cut(2, [(0, 1, 7)], 0, 1) == (7, frozenset({0}))


def test_no_path():
    assert minimum_cut(3, [(0, 1, 7)], 0, 2) == (0, frozenset({0, 1}))


def test_parallel_edges_add_up():
    assert minimum_cut(2, [(0, 1, 7), (0, 1, 2)], 0, 1)[0] == 9


def test_flow_is_rerouted():
    """The classic example where a greedy path must be undone."""
    edges = [(0, 1, 1), (0, 2, 1), (1, 2, 1), (1, 3, 1), (2, 3, 1)]
    assert minimum_cut(4, edges, 0, 3)[0] == 2


def test_capacities_beyond_64_bits_are_exact():
    assert minimum_cut(3, [(0, 1, 2**70 + 1), (1, 2, INFINITE)], 0, 2)[0] == 2**70 + 1


def test_a_long_chain_needs_no_recursion():
    count = 50_000
    edges = [(node, node + 1, 5 + node % 3) for node in range(count)]
    assert minimum_cut(count + 1, edges, 0, count)[0] == 5
