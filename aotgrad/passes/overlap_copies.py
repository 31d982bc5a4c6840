"""Places the copies of offloaded values to the host and back, so that the link works while the device computes.

    forward     h = offload(x); h = wait(h, x); y = mm(a, b)      ->    h = offload(x); y = mm(a, b); h = wait(h, x)
    backward    g = mm(t, w); r = reload(h); x = wait(r); ...     ->    r = reload(h); g = mm(t, w); x = wait(r); ...

In the forward, a copy starts after the last use of the value, and its wait, which frees the value, runs where the copy has
arrived. In the backward, a copy starts as late as it can arrive in time, and is awaited where the value is read. The places
are found by simulation, with the speeds of `host_copies`. It runs on both halves before anything else does, so that stored
halves have these places, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.graph.geometry import bytes_of_value
from aotgrad.graph.host_copies import OFFLOAD, speed_of
from aotgrad.graph.message_order import Message, arrival_places
from aotgrad.ir import Partition
from aotgrad.passes.overlap_collectives import Collective, OverlapCollectives, Parts


def overlap_copies(partition: Partition, max_bytes: int) -> Partition:
    """Place the copies of offloaded values; changes the graphs of the halves in place."""
    schedule = OverlapCopies.of(partition, max_bytes)
    for half in (partition.forward, partition.backward) if schedule else ():
        assert schedule is not None and half is not None, "values are offloaded for a backward"
        schedule.apply(half).module.recompile()
        for node in half.module.graph.nodes:
            if op_table.is_host_copy(node.target):
                node.meta[PLACED] = True
    return partition


PLACED = "placed"
"""In `meta` of a copy: it stays. A training step with several backwards has such copies of an earlier one."""


@dataclass(frozen=True)
class OverlapCopies(OverlapCollectives):
    """Overlaps copies with computations while those in flight hold at most `max_bytes` of the device."""

    name: str = "overlap_copies"

    @classmethod
    def of(cls, partition: Partition, max_bytes: int = 2**30) -> OverlapCopies | None:
        """The pass with the speeds of the device of a partition; `None` if nothing is offloaded."""
        nodes = partition.forward.module.graph.nodes if partition.host_bytes else ()
        speed = next((speed_of(node) for node in nodes if op_table.is_host_copy(node.target)), None)
        return speed and cls(max_bytes, speed.link, speed.bytes_per_second, speed.flops_per_second)

    def moves(self, node: fx.Node) -> bool:
        return op_table.is_host_copy(node.target) and PLACED not in node.meta

    def messages(self, parts: Parts, seconds: Sequence[float]) -> list[Message]:
        """What goes to the host is awaited where it has arrived; what comes back, where it is read."""
        found = super().messages(parts, seconds)
        pairs = zip(parts.messages, found, arrival_places(seconds, found), strict=True)
        return [replace(each, read=end) if copy.start.target is OFFLOAD else each for copy, each, end in pairs]

    def message(self, parts: Parts, collective: Collective) -> Message:
        size = bytes_of_value(collective.start)
        return Message(self.link.seconds(size), size, *parts.places(collective))
