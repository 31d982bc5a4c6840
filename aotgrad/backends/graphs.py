"""Helpers for the graph passes of backends: read and replace outputs, insert behind inputs or before writes to them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch.fx as fx

from aotgrad.graph.memory_owners import writes_at_end


def outputs_of(graph: fx.Graph) -> Sequence[Any]:
    """The outputs of a graph; a subgraph may return one tensor alone."""
    (end,) = graph.find_nodes(op="output")
    returned: Any = end.args[0]
    return (returned,) if isinstance(returned, fx.Node) else returned


def replace_outputs(graph: fx.Graph, outputs: Sequence[Any]) -> None:
    """Make a graph return `outputs`, in the same container as before."""
    (end,) = graph.find_nodes(op="output")
    end.args = (outputs[0] if isinstance(end.args[0], fx.Node) else type(end.args[0])(outputs),)


def inserting_behind_inputs(graph: fx.Graph) -> contextlib.AbstractContextManager[None]:
    """Inside, new nodes are inserted between the inputs and the first op."""
    return graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder"))


def inserting_before_writes(graph: fx.Graph) -> contextlib.AbstractContextManager[None]:
    """Inside, new nodes are inserted before the output, and before the writes to inputs at the end."""
    (end,) = graph.find_nodes(op="output")
    return graph.inserting_before((end, *writes_at_end(graph))[-1])
