"""Keeps the autograd graphs of eager calls where a gradient of a gradient needs them, and the gradient itself does not.

y = isl(x); return y, y * w     The product is a part of the backward of its own, which reads y and passes a gradient to y.
                                It needs no autograd graph. But a gradient of this gradient leads through y to the call.

A rerun of the function takes the graph from what this part has saved: the call has an effect, so it does not run again.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch.fx as fx

from aotgrad.eager_calls.ops import CALL, CALL_KEPT
from aotgrad.graph.dependents import dependencies_of, dependents_of
from aotgrad.graph.ends import output_node
from aotgrad.ir import JointGraph
from aotgrad.slots import FORWARD_RESULTS, Gradient


def keep_tapes(joint: JointGraph) -> JointGraph:
    """`joint` with a reader of the tape in each segment that depends on a call of the forward. Changes `joint` in place."""
    graph = joint.module.graph
    calls = [node for node in graph.nodes if node.target is CALL and not is_freed(node)]
    if not calls or not joint.differentiable:
        return joint
    of_backward = dependents_of(joint.placeholders[tangent] for tangent in joint.signature.tangents)
    returned = (joint.results[slot] for slot in joint.results if isinstance(slot, FORWARD_RESULTS))
    of_forward = dependencies_of(value for value in returned if isinstance(value, fx.Node))
    for number, gradients in gradients_of_segments(joint):
        needed = dependencies_of(gradients)
        for call in calls:
            is_read = any(user in needed and user in of_backward for user in call.users)
            if call in needed and call in of_forward and call not in of_backward and not is_read:
                with graph.inserting_before(output_node(graph)):
                    kept = graph.call_function(CALL_KEPT, (call.args[0], call))
                kept.meta = {"val": None, "autograd_backward": True, "segment": number}
    joint.module.recompile()
    return joint


def is_freed(call: fx.Node) -> bool:
    """Whether a checkpoint frees the autograd graph of a call: it does not if a derivative outside is computed from it."""
    readers = (user for user in call.users if user.target is CALL)
    return is_in_checkpoint(call) and all(map(is_in_checkpoint, readers))


def is_in_checkpoint(node: fx.Node) -> bool:
    return "recompute" in node.meta


def gradients_of_segments(joint: JointGraph) -> Iterator[tuple[int, list[fx.Node]]]:
    """The number of each segment, and what it computes."""
    for number in range(len(joint.segments)):
        slots = (slot for slot in joint.results if isinstance(slot, Gradient) and (slot.segment or 0) == number)
        yield number, [node for slot in slots if isinstance(node := joint.results[slot], fx.Node)]
