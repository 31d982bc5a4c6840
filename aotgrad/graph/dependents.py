"""What depends on some nodes of a graph, and what they depend on, however indirectly."""

from __future__ import annotations

from collections.abc import Container, Iterable

import torch.fx as fx


def dependents_of(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes, and those that are computed from them; not the output.

    >>> graph = fx.symbolic_trace(lambda x, y: (x + 1) * y).graph
    >>> x, y, add, mul, output = graph.nodes
    >>> dependents_of([x]) == {x, add, mul}
    True
    """
    found, left = set[fx.Node](), list(nodes)
    while left:
        if (node := left.pop()) not in found and node.op != "output":
            found.add(node)
            left += node.users
    return found


def dependencies_of(nodes: Iterable[fx.Node], known: Container[fx.Node] = ()) -> set[fx.Node]:
    """The nodes, and those that they are computed from. The search stops at `known` nodes, which are left out.

    >>> graph = fx.symbolic_trace(lambda x, y: (x + 1) * y).graph
    >>> x, y, add, mul, output = graph.nodes
    >>> dependencies_of([mul], known=[x]) == {mul, add, y}
    True
    """
    found, left = set[fx.Node](), list(nodes)
    while left:
        if (node := left.pop()) not in found and node not in known:
            found.add(node)
            left += node.all_input_nodes
    return found
