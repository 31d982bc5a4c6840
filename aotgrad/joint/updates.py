"""Which new values of inputs a backward reads: eager has saved them, and raises if they are changed before it runs.

    def f(x): x[0].relu_(); return x        the backward of relu_ reads the new value of x

The node that saved such a value may be one that autograd does not show: a write to a view has its node inside of the node of
the whole tensor (CopySlices). So this is read off the joint graph, before passes change it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterable, Mapping

import torch.fx as fx

from aotgrad.graph.memory_owners import memory_owner
from aotgrad.ir import BackwardSegment, SavingNodes
from aotgrad.slots import Gradient, Tangent, UpdatedInput


def reads_of_updates(
    graph: fx.Graph,
    forward: Collection[fx.Node],
    updates: Mapping[UpdatedInput, fx.Node],
    segment: BackwardSegment,
    tangents: Mapping[Tangent, fx.Node],
    gradients: Mapping[Gradient, fx.Node | None],
) -> tuple[SavingNodes, ...]:
    """The nodes of one segment that read new values of inputs, by what leads to them and what they lead to.

    Args:
        forward: the nodes of the forward; the others are the backward's.
        updates: the nodes that compute the new values.
    """
    owners = {memory_owner(node): slot for slot, node in updates.items()}
    reads = {node: {owners[memory_owner(node)]} if memory_owner(node) in owners else set() for node in forward}
    reached = {tangents[tangent]: 1 << k for k, tangent in enumerate(segment.tangents)}
    leads: dict[fx.Node, int] = {}
    for k, gradient in enumerate(segment.gradients):
        if (node := gradients[gradient]) is not None:
            leads[node] = leads.get(node, 0) | 1 << k
    backward = [node for node in graph.nodes if node not in reads]
    for node in backward:
        reached[node] = reached.get(node, 0) | union(reached.get(source, 0) for source in node.all_input_nodes)
        own = (reads[source] for source in node.all_input_nodes if not reached.get(source) and source in reads)
        reads[node] = set().union(*own)
    for node in reversed(backward):
        leads[node] = leads.get(node, 0) | union(leads.get(user, 0) for user in node.users)
    found = {(reached[node], leads[node], frozenset(reads[node])) for node in backward if reached[node] and reads[node]}
    return tuple(SavingNodes(*each) for each in sorted(found, key=lambda each: each[:2]) if each[1])


def union(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)
