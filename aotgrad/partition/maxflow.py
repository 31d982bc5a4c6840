"""Minimum s-t cut of a directed graph with integer capacities. No torch.

In: a `Network` of edges `(tail, head)`, their capacities, source and sink. Out: the value of the cut and its source side.

    >>> minimum_cut(3, [(0, 1, 5), (1, 2, 3)], 0, 2)
    (3, frozenset({0, 1}))

A network is built once and cut many times, with different capacities.

Dinic's algorithm (E. A. Dinic, 1970). Each phase labels the nodes with their distance to the sink, by breadth-first search,
and saturates all shortest paths, by depth-first search along edges that lead one step nearer. It is iterative and uses flat
lists: edge `e` and its reverse `e ^ 1` are neighbours. Of all minimum cuts, it returns the one with the smallest source
side. The result depends only on the input, not on the order of a set or a hash.

Limits: O(V^2 E) at worst; graphs of tensor programs need a few phases. Capacities must be Python ints, or `INFINITE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

INFINITE = 1 << 200  # larger than any weighted sum of bytes and times: a cut of this value is not allowed

CapacityEdge = tuple[int, int, int]


def minimum_cut(num_nodes: int, edges: Iterable[CapacityEdge], source: int, sink: int) -> tuple[int, frozenset[int]]:
    """The value of a minimum cut, and its source side: `Network.min_cut` for a graph that is cut once."""
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
            distance = _distances(flow, source, sink)
            if distance[source] < 0:
                return value, _reachable(flow, source)
            value += _blocking_flow(flow, distance, source, sink)


@dataclass(frozen=True)
class _Flow:
    """`residual[e]` may still flow along edge `e`, whose head is `heads[e]`; `out[v]` are the edges leaving `v`."""

    heads: list[int]
    residual: list[int]
    out: list[list[int]]


def _distances(flow: _Flow, source: int, sink: int) -> list[int]:
    """The distance of each node to the sink along edges with residual capacity; -1 without a path.

    Nodes farther than the source need no label. With distances to the sink, no shorter step is a dead end at first.
    """
    heads, residual, out = flow.heads, flow.residual, flow.out
    distance = [-1] * len(out)
    distance[sink] = steps = 0
    nearer = [sink]
    while nearer and distance[source] < 0:
        steps += 1
        reached: list[int] = []
        for node in nearer:
            for edge in out[node]:
                tail = heads[edge]
                if distance[tail] < 0 and residual[edge ^ 1]:
                    distance[tail] = steps
                    reached.append(tail)
        nearer = reached
    return distance


def _reachable(flow: _Flow, source: int) -> frozenset[int]:
    heads, residual, out = flow.heads, flow.residual, flow.out
    reached, stack = {source}, [source]
    while stack:
        for edge in out[stack.pop()]:
            if residual[edge] and heads[edge] not in reached:
                reached.add(heads[edge])
                stack.append(heads[edge])
    return frozenset(reached)


def _blocking_flow(flow: _Flow, distance: list[int], source: int, sink: int) -> int:
    """Saturate every shortest path; return the flow that this adds."""
    heads, residual, out = flow.heads, flow.residual, flow.out
    current = [0] * len(distance)  # the first edge of each node that may still lead to the sink
    path: list[int] = []
    node, total = source, 0
    while True:
        if node == sink:
            pushed, kept = _augment(residual, path)
            total += pushed
            node = heads[path[kept] ^ 1]
            del path[kept:]
        edges, nearer = out[node], distance[node] - 1
        for index in range(current[node], len(edges)):
            edge = edges[index]
            if residual[edge] and distance[heads[edge]] == nearer:
                current[node] = index
                path.append(edge)
                node = heads[edge]
                break
        else:
            current[node] = len(edges)
            if not path:
                return total
            node = heads[path.pop() ^ 1]
            current[node] += 1


def _augment(residual: list[int], path: list[int]) -> tuple[int, int]:
    """Push as much as fits along `path`; return it, and the number of edges before the first full one."""
    pushed = min([residual[edge] for edge in path])
    first = -1
    for index, edge in enumerate(path):
        residual[edge] -= pushed
        residual[edge ^ 1] += pushed
        if first < 0 and not residual[edge]:
            first = index
    return pushed, first
