"""A gradient that a custom function computes in another way for each set of defined tangents.

The joint graph has all ways, one argument each; a variant of the backward keeps its own.

    gradient = by_defined([t1, t2], [(True, True), (True, False), (False, True)], [mul(t1, t2), t1, None])
    t2 undefined:    t1        t1 undefined:    None
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx as fx

Case = tuple[bool, ...]
"""Which tangents are defined."""


def by_defined(tangents: Sequence[torch.Tensor], cases: Sequence[Case], values: Sequence[Any]) -> Any:
    """The value of the first case, in which all tangents are defined."""
    return values[0]


def has_cases(graph: fx.Graph) -> bool:
    return any(graph.find_nodes(op="call_function", target=by_defined))


def resolve_cases(graph: fx.Graph, undefined: Collection[fx.Node]) -> list[fx.Node]:
    """Replace each choice by its value where the tangents `undefined` are undefined; returns those without a value."""
    without: list[fx.Node] = []
    for node in graph.find_nodes(op="call_function", target=by_defined):
        tangents, cases, values = node.args
        case = tuple(tangent not in undefined for tangent in tangents)
        value = values[list(map(tuple, cases)).index(case)] if any(case) else None
        if value is None:
            without.append(node)
        else:
            node.replace_all_uses_with(value)
            graph.erase_node(node)
    return without
