"""Recomputes random ops with equal numbers: the forward records the state of the generator.

In: the copy of a random op in the forward or in the backward graph. Out: nodes that replace it.

    forward    state, mask = draw_and_record(bernoulli, x, 0.5)      draws as before, and returns the state
    backward   mask = draw_again(state, bernoulli, x, 0.5)             leaves the generator as it found it

A state has 5056 bytes on a CPU and 16 on a GPU, however much is drawn; the cut weighs it against the mask.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph.draws import record_draw
from aotgrad.partition import costs


def can_record(node: fx.Node) -> bool:
    """Whether the op draws from the default generator of one device whose state can be read and set."""
    if node.meta.get("draws_once"):
        return False
    if not isinstance(node.target, torch._ops.OpOverload) or _device_type(node) is None:
        return False
    given = (*node.args, *node.kwargs.values())
    names_device = "device" in node.kwargs or any(costs.tensors_of(arg) for arg in node.all_input_nodes)
    return names_device and not any(isinstance(arg, torch.Generator) for arg in given)


def state_bytes(node: fx.Node) -> int:
    """Bytes of the recorded state for the op."""
    return torch_compat.RANDOM_STATE_BYTES[_device_type(node) or "cpu"]


def state_name(node: fx.Node) -> str:
    return f"{node.name}_state"


def record(copy: fx.Node, node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """Replace `copy`, the copy of `node` in a forward graph; returns (its result, the state before it)."""
    result, state = record_draw(copy, (f"{node.name}_drawn", state_name(node)))
    state.meta["partitioner_tag"] = "is_forward"
    return result, state


def rerun(graph: fx.Graph, copy: fx.Node, state: fx.Node) -> fx.Node:
    """Replace `copy`, the copy of a random op in a backward graph."""
    args: Any = (state, copy.target, *copy.args)
    drawn = graph.call_function(torch_compat.draw_again, args, dict(copy.kwargs))
    drawn.meta = {**copy.meta}
    graph.erase_node(copy)
    return drawn


def _device_type(node: fx.Node) -> str | None:
    devices = {tensor.device.type for tensor in costs.tensors_of(node)}
    (device,) = devices if len(devices) == 1 else (None,)
    return device if device in torch_compat.RANDOM_STATE_BYTES else None
