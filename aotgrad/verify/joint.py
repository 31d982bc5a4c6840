"""The contract of a joint graph: functional ops, a slot for every placeholder and output, gradients like their primals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.ir import JointGraph
from aotgrad.printing import type_text
from aotgrad.slots import (
    Gradient,
    Memory,
    OldInput,
    Primal,
    ReturnedView,
    ReturnedWrapper,
    SegmentBoundary,
    SlotSignature,
    Tangent,
    UpdatedInput,
)
from aotgrad.verify.common import (
    Problems,
    check_graph,
    placeholders_of,
    recorded_value,
    slot_list,
    without_repeats,
)


def check_joint(joint: JointGraph) -> Problems:
    """Check for functional ops, a slot per placeholder and output, and gradients with the types of their primals."""
    signature = joint.signature
    yield from check_graph(joint.module, signature)
    yield from check_names(joint.module, signature)
    expected = (*map(Primal, range(len(signature.primals))), *signature.tangents, *signature.guarded)
    if signature.inputs != expected:
        yield f"the inputs are {slot_list(signature.inputs)}; they must be {slot_list(expected)}"
    yield from check_results(signature)
    yield from check_functional(joint)
    yield from check_segments(joint)
    yield from check_saved_in_eager(joint)
    types = {slot: node.meta["val"] for slot, node in joint.placeholders.items()}
    for gradient, node in joint.results.items():
        if isinstance(gradient, Gradient) and not is_external_view(gradient, signature):
            target: Any = gradient.of
            place = joint.memory[target.index] if isinstance(target, Memory) else None
            key = target if isinstance(target, Primal) else place if isinstance(place, Tangent) else Tangent(target)
            like = types[key]
            yield from check_gradient(gradient, node, like)


def check_names(module: fx.GraphModule, signature: SlotSignature) -> Problems:
    """Check the names of placeholders, on which backends rely: `primals_1, ..., tangents_1, ...`."""
    kinds = (("primals", signature.primals), ("tangents", signature.tangents), ("guarded", signature.guarded))
    expected = [f"{name}_{k}" for name, slots in kinds for k in range(1, len(slots) + 1)]
    for node, slot, name in zip(placeholders_of(module), signature.inputs, expected, strict=True):
        if node.name != name:
            yield f"the placeholder of {slot} is called {node.name}, not {name}"


def check_results(signature: SlotSignature) -> Problems:
    """Check that gradients, if any, follow the results, and that each tangent belongs to a result or a segment boundary."""
    expected = (*signature.forward_results, *(signature.gradients if signature.tangents else ()))
    if signature.outputs != expected:
        yield f"the outputs are {slot_list(signature.outputs)}; they must be {slot_list(expected)}"
    yield from without_repeats("result", signature.forward_results)
    yield from without_repeats("tangent", signature.tangents)
    yield from without_repeats("gradient", signature.gradients)
    for tangent in signature.incoming:
        if tangent.of not in signature.forward_results and not isinstance(tangent.of, SegmentBoundary):
            yield f"{tangent}: the graph returns no {tangent.of}"


def check_segments(joint: JointGraph) -> Problems:
    """Check that each tangent belongs to one segment, and that gradients go to primals and to later segments.

    A backward of one segment has one gradient per primal. The segment does not list gradients that are `None`.
    """
    signature, segments = joint.signature, joint.segments
    yield from same_set("tangents of segments", [t for s in segments for t in s.tangents], signature.incoming)
    if len(segments) == 1:
        views = [gradient for gradient in signature.gradients if is_external_view(gradient, signature)]
        yield from same_set("gradients", signature.outgoing, (*map(Gradient, signature.primals), *views))
    elif segments:
        yield from same_set("gradients of segments", [g for s in segments for g in s.gradients], signature.outgoing)
    tangents = [(number, tangent) for number, segment in enumerate(segments) for tangent in segment.tangents]
    segment_of: dict[Any, int] = {tangent.of: number for number, tangent in tangents}
    for number, segment in enumerate(segments):
        for gradient in segment.gradients:
            if gradient.segment != (number if len(segments) > 1 else None):
                yield f"segment {number} lists the {gradient}"
            elif is_external_view(gradient, signature) or isinstance(gradient.of, Primal):
                continue
            elif segment_of.get(gradient.of, -1) <= number:
                yield f"the {gradient} goes to no later segment"


def check_saved_in_eager(joint: JointGraph) -> Problems:
    """Check that the memory of values that eager saves is that of primals and results, also in each segment."""
    places = joint.saved_in_eager.union(*(nodes.memory for segment in joint.segments for nodes in segment.saving))
    if missing := places - {*joint.signature.primals, *joint.signature.forward_results}:
        yield f"eager saves values in the memory of {slot_list(sorted(missing, key=str))}; the graph has no such place"


def is_external_view(gradient: Gradient, signature: SlotSignature) -> bool:
    """Whether a gradient leaves the graph through a view that the plan makes: of a result, or of a changed input."""
    match gradient.of:
        case ReturnedView() | ReturnedWrapper() | OldInput():
            return True
        case UpdatedInput():
            return Tangent(gradient.of) not in signature.tangents
    return False


def same_set(what: str, found: Sequence[Any], expected: Sequence[Any]) -> Problems:
    if len(found) != len(expected) or set(found) != set(expected):
        yield f"the {what} are {slot_list(found)}; they must be {slot_list(expected)}"


def check_functional(joint: JointGraph) -> Problems:
    """Check that no op writes."""
    for node in joint.module.graph.nodes:
        if op_table.writes(node.target):
            yield f"node {node.name} ({node.target}) writes to its arguments"


def check_gradient(gradient: Gradient, node: Any, primal: Any) -> Problems:
    """Check dtype and device; `check_sizes` compares sizes later, because it knows which inputs change theirs."""
    value = recorded_value(node)
    if value is None:
        return
    if not isinstance(primal, torch.Tensor):
        yield f"{gradient} is {type_text(value)} ({node.name}), the primal is not a tensor"
    elif (value.dtype, value.device) != (primal.dtype, primal.device):
        yield f"{gradient} is {type_text(value)} ({node.name}), the primal is {type_text(primal)}"
