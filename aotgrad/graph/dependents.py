"""What depends on some nodes of a graph, however indirectly."""

from __future__ import annotations

from collections.abc import Iterable

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
