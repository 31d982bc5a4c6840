"""Merges neighbouring collectives of one kind into one call: many small messages cost more than a large one.

r = all_reduce(g); s = all_reduce(h)     ->     b = all_reduce_coalesced([g, h]); r = b[0]; s = b[1]

It runs on the joint graph, which is the same on all ranks: `options={"joint_passes": [BucketCollectives()]}`. It reads only
data dependences and static sizes, so all ranks make the same buckets; an operand of symbolic size stays alone. Collectives
that eager may run without one another (`RunsBetween`) are not merged.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.passes.base import AnyGraph


@dataclass(frozen=True)
class BucketCollectives:
    """Merges collectives while the operands of a bucket have at most `max_bytes`."""

    max_bytes: int = 25 * 2**20
    name: str = "bucket_collectives"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        for bucket in list(self.buckets(graph.module.graph)):
            merge(bucket)
        return graph

    def buckets(self, graph: fx.Graph) -> Iterator[list[fx.Node]]:
        """Runs of collectives without another one between them that may be one call."""
        position = {node: k for k, node in enumerate(graph.nodes)}
        bucket: list[fx.Node] = []
        for node in (node for node in position if op_table.is_collective(node.target)):
            if bucket and not self.may_join(bucket, node, position):
                yield from [bucket] if len(bucket) > 1 else []
                bucket = []
            bucket.append(node)
        yield from [bucket] if len(bucket) > 1 else []

    def may_join(self, bucket: list[fx.Node], node: fx.Node, position: Mapping[fx.Node, int]) -> bool:
        sizes = [operand_bytes(each) for each in (*bucket, node)]
        alike = bucket_kind(node) is not None and bucket_kind(node) == bucket_kind(bucket[0])
        small = None not in sizes and sum(filter(None, sizes)) <= self.max_bytes
        return alike and small and all(first_reader(each, position) > position[node] for each in bucket)


def bucket_kind(node: fx.Node) -> Any:
    """What collectives of one bucket have in common; `None` for one that stays alone."""
    merged, value = op_table.coalesced(node.target), node.meta.get("val")
    if merged is None or not isinstance(value, torch.Tensor) or node.kwargs:
        return None
    tags = [node.meta.get(name) for name in ("autograd_backward", "segment", "runs_between", "recompute", "ac_graph_id")]
    return merged, node.args[1:], value.dtype, value.device, *tags


def operand_bytes(node: fx.Node) -> int | None:
    """The bytes of the operand; `None` if a size is symbolic."""
    value = node.all_input_nodes[0].meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(type(size) is int for size in value.shape):
        return None
    return value.numel() * value.element_size()


def first_reader(node: fx.Node, position: Mapping[fx.Node, int]) -> int:
    """The position of the first node, other than a wait, that reads a result."""
    found = (first_reader(user, position) if op_table.is_wait(user.target) else position[user] for user in node.users)
    return min(found, default=len(position))


def merge(bucket: list[fx.Node]) -> None:
    """Start the bucket in the place of its last collective."""
    last = bucket[-1]
    graph, args = last.graph, [node.args[0] for node in bucket]
    with graph.inserting_after(last):
        call = graph.call_function(op_table.coalesced(last.target), (args, *last.args[1:]))
    call.meta = {**last.meta, "val": [node.meta["val"] for node in bucket]}
    after = call
    for k, node in enumerate(bucket):
        with graph.inserting_after(after):
            item = graph.call_function(operator.getitem, (call, k))
        item.meta = {name: value for name, value in node.meta.items() if name not in ("collective", "runs_between")}
        waits = [user for user in node.users if op_table.is_wait(user.target)]
        node.replace_all_uses_with(item)
        after = item
        for wait in waits:
            after.append(wait)
            after = wait
        graph.erase_node(node)
