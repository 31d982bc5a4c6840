"""Moves the writes to mutated inputs into the forward graph, so that the backend can fuse them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
import torch.fx as fx

from aotgrad.ir import GraphHalf
from aotgrad.passes.rewrite import copy_half
from aotgrad.slots import OutputSlot, Primal, Saved, SlotSignature, UpdatedInput


def keep_input_mutations(forward: GraphHalf, writable: Collection[int]) -> GraphHalf:
    """End the graph with `copy_(primal, updated)` instead of returning `updated`, for the inputs in `writable`.

    An updated value that is saved stays a result: the input itself is saved then, so that later writes to it are noticed.
    """
    values = outputs_by_slot(forward)
    saved = {value for slot, value in values.items() if isinstance(slot, Saved)}
    changed = [slot for slot in values if isinstance(slot, UpdatedInput) and slot.index in writable]
    written = [slot for slot in changed if values[slot] not in saved]
    if not written:
        return forward
    forward = copy_half(forward)
    graph, results = forward.module.graph, outputs_by_slot(forward)
    placeholders = zip(forward.signature.inputs, graph.find_nodes(op="placeholder"), strict=True)
    primals = {slot.index: node for slot, node in placeholders if isinstance(slot, Primal)}
    (output,) = graph.find_nodes(op="output")
    for slot in written:
        append_copy(graph, output, primals[slot.index], results.pop(slot))
    output.args = (tuple(results.values()),)
    forward.module.recompile()
    return replace(forward, signature=SlotSignature(forward.signature.inputs, tuple(results)))


def outputs_by_slot(half: GraphHalf) -> dict[OutputSlot, fx.Node]:
    """The node behind each output slot."""
    (output,) = half.module.graph.find_nodes(op="output")
    return dict(zip(half.signature.outputs, output.args[0], strict=True))


def append_copy(graph: fx.Graph, output: fx.Node, target: fx.Node, value: fx.Node) -> None:
    with graph.inserting_before(output):
        copy = graph.call_function(torch.ops.aten.copy_.default, (target, value))
    copy.meta["val"] = target.meta["val"]
