"""The ends of a graph: its output node, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx as fx


def output_node(graph: fx.Graph) -> fx.Node:
    (found,) = graph.find_nodes(op="output")
    return found


def outputs_of(graph: fx.Graph) -> Sequence[Any]:
    """What a graph returns; a subgraph may return one tensor alone."""
    returned: Any = output_node(graph).args[0]
    return (returned,) if isinstance(returned, fx.Node) else returned
