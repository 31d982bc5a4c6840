"""Minimum s-t cut of a directed graph with integer capacities. Knows nothing of torch.

In: a `Network` of edges `(tail, head)`, their capacities, source and sink. Out: the value of the cut and its source side.

    >>> min_cut(3, [(0, 1, 5), (1, 2, 3)], 0, 2)
    (3, frozenset({0, 1}))

A network is made once and cut many times, with other capacities each time.

Dinic's algorithm (E. A. Dinic, 1970): phases of a breadth-first search, which labels each node with its distance from
the source, and a depth-first search along edges that go one step further, which saturates all shortest paths.
Iterative, on flat lists: edge `e` and its reverse `e ^ 1` are neighbours. Of all minimum cuts it returns the one with
the smallest source side. The result depends on the input only, not on the order of a set or a hash.

Limits: O(V^2 E) at worst; graphs of tensor programs need a few phases. Capacities must be Python ints, or `INFINITE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

INFINITE = 1 << 200  # larger than any weighted sum of bytes and times; a cut of this value cuts what must not be cut

Edge = tuple[int, int, int]


def min_cut(num_nodes: int, edges: Iterable[Edge], source: int, sink: int) -> tuple[int, frozenset[int]]:
    """The value of a minimum cut, and the nodes on its source side: `Network.min_cut` for a graph that is cut once."""
    edges = list(edges)
    network = Network(num_nodes, [(tail, head) for tail, head, _ in edges])
    return network.min_cut([capacity for _, _, capacity in edges], source, sink)


class Network:
    """The edges of a directed graph; nodes are the ints below `num_nodes`."""

    def __init__(self, num_nodes: int, edges: Iterable[tuple[int, int]]) -> None:
        self.heads: list[int] = []
        self.out: list[list[int]] = [[] for _ in range(num_nodes)]
        for tail, head in edges:
            self.out[tail].append(len(self.heads))
            self.out[head].append(len(self.heads) + 1)
            self.heads.extend((head, tail))

    def min_cut(self, capacities: Sequence[int], source: int, sink: int) -> tuple[int, frozenset[int]]:
        """The value of a minimum cut, and the smallest source side of all minimum cuts.

        Args:
            capacities: one for each edge, at least 0; parallel edges add up.
        """
        residual = [0] * len(self.heads)
        residual[::2] = capacities
        flow = _Flow(self.heads, residual, self.out)
        value = 0
        while True:
            level = _levels(flow, source, sink)
            if level[sink] < 0:
                return value, frozenset(node for node, distance in enumerate(level) if distance >= 0)
            value += _blocking_flow(flow, level, source, sink)


@dataclass(frozen=True)
class _Flow:
    """`residual[e]` may still flow along edge `e`, whose head is `heads[e]`; `out[v]` are the edges leaving `v`."""

    heads: list[int]
    residual: list[int]
    out: list[list[int]]


def _levels(flow: _Flow, source: int, sink: int) -> list[int]:
    """The distance of each node from the source along edges with residual capacity; -1 where there is no path.

    Nodes at least as far as the sink need no label, unless the sink cannot be reached.
    """
    heads, residual, out = flow.heads, flow.residual, flow.out
    level = [-1] * len(out)
    level[source] = 0
    frontier = [source]
    while frontier and level[sink] < 0:
        reached: list[int] = []
        for node in frontier:
            distance = level[node] + 1
            for edge in out[node]:
                if residual[edge] and level[heads[edge]] < 0:
                    level[heads[edge]] = distance
                    reached.append(heads[edge])
        frontier = reached
    return level


def _blocking_flow(flow: _Flow, level: list[int], source: int, sink: int) -> int:
    """Saturate every shortest path; return the flow that this adds."""
    heads, residual = flow.heads, flow.residual
    current = [0] * len(level)  # the first edge of each node that may still lead to the sink
    path: list[int] = []
    node, total = source, 0
    while True:
        if node == sink:
            pushed, kept = _augment(residual, path)
            total += pushed
            node = heads[path[kept] ^ 1]
            del path[kept:]
        edge = _advance(flow, level, current, node)
        if edge >= 0:
            path.append(edge)
            node = heads[edge]
        elif path:
            node = heads[path.pop() ^ 1]
            current[node] += 1
        else:
            return total


def _advance(flow: _Flow, level: list[int], current: list[int], node: int) -> int:
    """The next edge of `node` that goes one step further and is not full, or -1."""
    heads, residual, edges = flow.heads, flow.residual, flow.out[node]
    distance = level[node] + 1
    for index in range(current[node], len(edges)):
        edge = edges[index]
        if residual[edge] and level[heads[edge]] == distance:
            current[node] = index
            return edge
    current[node] = len(edges)
    return -1


def _augment(residual: list[int], path: list[int]) -> tuple[int, int]:
    """Push what fits along `path`; return it, and how many edges come before the first that is now full."""
    pushed = min(residual[edge] for edge in path)
    for edge in path:
        residual[edge] -= pushed
        residual[edge ^ 1] += pushed
    return pushed, next(index for index, edge in enumerate(path) if not residual[edge])
