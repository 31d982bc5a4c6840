"""One backward graph -> the graph of each segment, which one autograd node of the compiled function runs.

In: the backward half of a partition and the segments of its joint graph. Out: a half for each segment. Values that two
segments recompute are in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch.fx as fx

from aotgrad.graph.dependents import dependents_of
from aotgrad.graph.ends import output_node
from aotgrad.ir import BackwardSegment, GraphHalf
from aotgrad.runtime.variants import needed_inputs, remove_dead_code
from aotgrad.slots import Gradient, Memory, SlotSignature


def segment_halves(backward: GraphHalf, segments: Sequence[BackwardSegment]) -> tuple[GraphHalf, ...]:
    """The graph of each segment; a single segment is the backward itself."""
    if len(segments) == 1:
        return (backward,)
    return tuple(segment_half(backward, segment, number) for number, segment in enumerate(segments))


def segment_half(backward: GraphHalf, segment: BackwardSegment, number: int) -> GraphHalf:
    """The part of `backward` that computes the gradients of `segment` and the new values of memory.

    It keeps every tangent of the segment.
    """
    copy = backward.copy()
    graph, placeholders, results = copy.module.graph, copy.placeholders, copy.results
    slots = (*segment.gradients, *(Gradient(change.memory, number) for change in segment.changes))
    output_node(graph).args = (tuple(results[slot] for slot in slots),)
    others = [slot for slot in backward.signature.incoming if slot not in segment.tangents]
    erase_dependents(graph, [placeholders[slot] for slot in others])
    erase_effects(graph, number)
    remove_dead_code(graph)
    own = needed_inputs(placeholders, segment.tangents)
    for slot in placeholders.keys() - set(own):
        graph.erase_node(placeholders[slot])
    return replace(copy, signature=SlotSignature(tuple(own), slots))


def erase_dependents(graph: fx.Graph, sources: Sequence[fx.Node]) -> None:
    """Erase what is computed from `sources`, also checks, which dead-code elimination would leave."""
    dependents = dependents_of(sources)
    for node in reversed(graph.nodes):
        if node in dependents and node.op != "placeholder":
            graph.erase_node(node)


def erase_effects(graph: fx.Graph, number: int) -> None:
    """Erase the effects and draws of other segments, which may read no tangent, and what is computed from them."""
    others = {node for node in graph.nodes if node.meta.get("segment", number) != number}
    for node in reversed(graph.nodes):
        if node in others and not node.users and node.op != "placeholder":
            graph.erase_node(node)


def memory_of(half: GraphHalf, segment: BackwardSegment) -> tuple[Memory, ...]:
    """The memory that the graph of a segment takes as inputs, then the memory that it only changes."""
    taken = half.signature.memory
    changed = (change.memory for change in segment.changes if change.tangent is None)
    return (*taken, *(memory for memory in changed if memory not in taken))
