"""Values that wait on the host: the forward sends them, the backward fetches them.

In: the copy of a node in the forward, or its value on the host in the backward. Out: nodes of `host_copies`.

    forward     h = mm(x, w); y = sin(h); h_host = offload(h); h_host_wait = wait(h_host, h)      saves h_host_wait
    backward    h_host_reload = reload(h_host, device); h = wait(h_host_reload); c = cos(h)

A copy starts after the last use of the value, and right before its first use. `passes.OverlapCopies` moves it from there.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph.host_copies import OFFLOAD, RELOAD, WAIT
from aotgrad.graph.memory_owners import memory_owners


def on_host(node: fx.Node) -> torch.Tensor:
    """The traced value of a node, on the host."""
    value = node.meta["val"]
    with value.fake_mode:
        return OFFLOAD(value.detach())


def send(node: fx.Node, name: str, value: torch.Tensor) -> fx.Node:
    """Send the value of a node of the forward to the host after its last use; returns it there."""
    graph = node.graph
    owners = memory_owners(graph.nodes)
    users = {node, *(user for view, owner in owners.items() if owner is node for user in view.users)}
    with graph.inserting_before(next(each for each in reversed(graph.nodes) if each in users).next):
        start = _copy_call(graph, OFFLOAD, (node,), name, value, "is_forward")
        return _copy_call(graph, WAIT, (start, node), f"{name}_wait", value, "is_forward")


def fetch(graph: fx.Graph, host: fx.Node, node: fx.Node) -> fx.Node:
    """Fetch a value from the host at the end of a graph of the backward; `node` is what it was in the joint graph."""
    value = node.meta["val"]
    start = _copy_call(graph, RELOAD, (host, value.device), f"{host.name}_reload", value, "is_backward")
    return _copy_call(graph, WAIT, (start,), node.name, value, "is_backward")


def _copy_call(graph: fx.Graph, target: Any, args: tuple[Any, ...], name: str, value: Any, tag: str) -> fx.Node:
    node = graph.create_node("call_function", target, args, name=name)
    node.meta = {"val": value, "partitioner_tag": tag}
    return node
