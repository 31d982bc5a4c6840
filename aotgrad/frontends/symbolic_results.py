"""Dimensions that stay symbolic from one of Dynamo's graphs to the next, after a graph break or in a backward.

Without them, the next graph takes the sizes of a result as constants, and Dynamo raises if they must equal a size that the
user marked as dynamic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch.fx as fx

from aotgrad import torch_compat


def with_symbolic_results(function: Callable, dims: Mapping[int, frozenset[int]]) -> Callable:
    """A function that marks the symbolic dimensions of its results, by position."""
    if not dims:
        return function

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        results = function(*args)
        torch_compat.keep_symbolic(results, dims)
        return results

    return call


def symbolic_dims_of_results(graph: fx.Graph) -> dict[int, frozenset[int]]:
    """The symbolic dimensions of the results of Dynamo's graph, by position."""
    (results,) = graph.output_node().args
    values = (node.meta.get("example_value") if isinstance(node, fx.Node) else None for node in results)  # type: ignore
    return torch_compat.symbolic_dims_by_position(values)
