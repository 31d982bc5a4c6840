"""Copies that a function returns stay copies in a graph for Inductor.

    z = mm(x, w); a = pow(z, 2); b = clone(z); return a, b        not        return a, z

Inductor's joint passes take a copy of a value for the value. Where the backward saves that one, it would be the caller's to
change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx as fx

from aotgrad import op_table
from aotgrad.backends.graphs import inserting_behind_inputs, outputs_of, replace_outputs


@contextlib.contextmanager
def returned_copies_kept(graph: fx.Graph, results: int) -> Iterator[None]:
    """After passes that run inside, each of the first `results` outputs that is in the memory of another value is copied."""
    nodes = set(graph.nodes)
    owners = {k: owner_of(node) for k, node in enumerate(outputs_of(graph)[:results]) if is_computed(node)}
    yield
    outputs = list(outputs_of(graph))
    for k, owner in owners.items():
        if (now := owner_of(outputs[k])) is not owner and now in nodes:
            outputs[k] = copied(outputs[k])
    replace_outputs(graph, outputs)


def copied(node: fx.Node) -> fx.Node:
    """A copy, made before inputs are written at the end."""
    graph = node.graph
    with inserting_behind_inputs(graph) if node.op == "placeholder" else graph.inserting_after(node):
        copy = graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy


def is_computed(output: Any) -> bool:
    return isinstance(output, fx.Node) and output.op == "call_function" and isinstance(output.meta["val"], torch.Tensor)


def owner_of(node: fx.Node) -> fx.Node:
    """The node whose memory a node's result lies in."""
    while node.op == "call_function" and op_table.is_view(node.target):
        node = node.all_input_nodes[0]
    return node
