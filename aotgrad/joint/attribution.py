"""What is watched and kept while the backward is traced: origins of its nodes, eager's dtypes, layouts and checks.

A pre-hook on each autograd node tells the trace which forward op the next nodes belong to. A backward node so has the stack
trace and the module path of the forward op that it differentiates.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.graph.autograd_nodes import autograd_nodes
from aotgrad.ir import OpenTrace
from aotgrad.joint.effects import LastNode

NO_SEGMENTS: Mapping[Any, int] = {}


@contextlib.contextmanager
def arrivals(primals: Sequence[Any]) -> Iterator[list[int]]:
    """The indices of primals in the order in which the backward inside completes their gradients."""
    arrived: list[int] = []
    watched = [k for k, primal in enumerate(primals) if isinstance(primal, torch.Tensor) and primal.requires_grad]
    handles = [primals[k].register_hook(lambda _, k=k: arrived.append(k)) for k in watched]
    try:
        yield arrived
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def eager_dtypes() -> Iterator[None]:
    """Turn off autocast, since eager's backward ops keep the dtypes of the forward, and grad mode, at first order."""
    with torch_compat.disable_autocast(), torch.no_grad():
        yield


@contextlib.contextmanager
def attributed_to_forward(
    trace: OpenTrace, roots: Iterable[torch.Tensor], segment_of: Mapping[Any, int] = NO_SEGMENTS
) -> Iterator[LastNode]:
    """While open, give backward ops the origin of the forward op that they differentiate, and their segment."""
    nodes, last = autograd_nodes(roots), LastNode()
    attributions = [node.register_prehook(_attribution(trace, node, segment_of.get(node), last)) for node in nodes]
    handles = [*attributions, *as_in_eager(nodes)]
    trace.attribute_to({})
    try:
        yield last
    finally:
        trace.attribute_to(None)
        for handle in handles:
            handle.remove()


def as_in_eager(nodes: Iterable[Any]) -> Iterator[Any]:
    """Keep eager's layouts and checks of gradients; returns the handles of hooks."""
    keep = (torch_compat.keep_gradient_layout, torch_compat.keep_check)
    return (handle for node in nodes for handle in (each(node) for each in keep) if handle is not None)


@contextlib.contextmanager
def differentiated_as_in_eager(roots: Iterable[torch.Tensor]) -> Iterator[None]:
    """While open, `as_in_eager` for a backward from `roots` that is itself differentiated."""
    nodes = autograd_nodes(roots)
    handles = [*as_in_eager(nodes), *itertools.chain.from_iterable(map(torch_compat.keep_differentiable, nodes))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def origin_of_backward(trace: OpenTrace, node: Any, segment: int | None) -> dict[str, Any]:
    origin = trace.origin_of(torch_compat.node_sequence_nr(node))
    if segment is not None:
        origin = {**origin, "segment": segment}
    if torch_compat.is_custom_node(node):
        origin = {**origin, "own_backward": True}
    return origin


def _attribution(trace: OpenTrace, node: Any, segment: int | None, last: LastNode) -> Callable[[Any], None]:
    origin = origin_of_backward(trace, node, segment)

    def attribute(_: Any) -> None:
        last.start(trace.graph, node)
        trace.attribute_to(origin)

    return attribute
