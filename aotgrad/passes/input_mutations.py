"""Moves the writes to mutated inputs into the forward graph, so that the backend can fuse them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
import torch.fx as fx

from aotgrad.graph.ends import output_node
from aotgrad.ir import GraphHalf
from aotgrad.slots import Primal, Saved, SlotSignature, UpdatedInput

PLACE_FIELDS = ("stack_trace", "nn_module_stack")
"""Fields of a node that say which line of the user it is from."""


def keep_input_mutations(forward: GraphHalf, writable: Collection[int]) -> GraphHalf:
    """End the graph with `copy_(primal, updated)` instead of returning `updated`, for the inputs in `writable`.

    An updated value that is saved stays a result: the input itself is saved then, so that later writes to it are noticed.
    """
    values = forward.results
    saved = {value for slot, value in values.items() if isinstance(slot, Saved)}
    changed = [slot for slot in values if isinstance(slot, UpdatedInput) and slot.index in writable]
    written = [slot for slot in changed if values[slot] not in saved]
    if not written:
        return forward
    forward = forward.copy()
    graph, placeholders, results = forward.module.graph, forward.placeholders, forward.results
    output = output_node(graph)
    for slot in written:
        append_copy(graph, output, placeholders[Primal(slot.index)], results.pop(slot))
    output.args = (tuple(results.values()),)
    forward.module.recompile()
    return replace(forward, signature=SlotSignature(forward.signature.inputs, tuple(results)))


def append_copy(graph: fx.Graph, output: fx.Node, target: fx.Node, value: fx.Node) -> None:
    with graph.inserting_before(output):
        copy = graph.call_function(torch.ops.aten.copy_.default, (target, value))
    place = {field: value.meta[field] for field in PLACE_FIELDS if field in value.meta}
    copy.meta.update(place, val=target.meta["val"])
