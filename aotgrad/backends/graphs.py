"""Helpers for the graph passes of backends: replace outputs, insert behind inputs or before writes to them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch.fx as fx

from aotgrad.graph.ends import output_node
from aotgrad.graph.memory_owners import writes_at_end


def replace_outputs(graph: fx.Graph, outputs: Sequence[Any]) -> None:
    """Make a graph return `outputs`, in the same container as before."""
    end = output_node(graph)
    returned: Any = end.args[0]
    end.args = (outputs[0] if isinstance(returned, fx.Node) else type(returned)(outputs),)


def inserting_behind_inputs(graph: fx.Graph) -> contextlib.AbstractContextManager[None]:
    """Inside, new nodes are inserted between the inputs and the first op."""
    return graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder"))


def inserting_before_writes(graph: fx.Graph) -> contextlib.AbstractContextManager[None]:
    """Inside, new nodes are inserted before the output, and before the writes to inputs at the end."""
    end = output_node(graph)
    return graph.inserting_before((end, *writes_at_end(graph))[-1])
