"""Moves the writes to mutated inputs into an inference graph, so that the backend can fuse them."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.fx as fx

from aotgrad.ir import JointGraph, MutationType, ViewAndMutationMeta
from aotgrad.slots import SlotSignature, UpdatedInput


def keep_input_mutations(joint: JointGraph, meta: ViewAndMutationMeta) -> JointGraph:
    """End the graph with `copy_(primal, updated)` instead of returning `updated`, if only data was mutated."""
    graph = joint.module.graph
    (output,) = graph.find_nodes(op="output")
    placeholders = dict(enumerate(graph.find_nodes(op="placeholder")))
    kept_slots, kept_nodes = [], []
    for slot, node in zip(joint.signature.outputs, output.args[0], strict=True):
        index = slot.index if isinstance(slot, UpdatedInput) else None
        if index in placeholders and meta.info(index).mutation is MutationType.DATA:
            append_copy(graph, output, placeholders[index], node)
        else:
            kept_slots.append(slot)
            kept_nodes.append(node)
    output.args = (kept_nodes,)
    joint.module.recompile()
    signature = SlotSignature(joint.signature.inputs, tuple(kept_slots))
    return replace(joint, signature=signature)


def append_copy(graph: fx.Graph, output: fx.Node, target: fx.Node, value: fx.Node) -> None:
    with graph.inserting_before(output):
        copy = graph.call_function(torch.ops.aten.copy_.default, (target, value))
    copy.meta["val"] = target.meta["val"]
