"""Which values may wait on the host, how long the link takes for each, and for how long it may work for nothing.

In: a `JointAnalysis`. Out: times in the units of `costs`, for a `Problem`.

A value can leave if it is a tensor without gaps that the forward computes and that nobody else holds. It is worth it if the
forward computes for at least as long as the link takes after the last use of the value, and the backward before its first
use. The link works beside the computations: out during the forward, back during the backward, so all that
travels must fit the shorter of the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.host_copies import SPEEDS, speed_on
from aotgrad.partition import costs
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.partition.problem import NEVER


def can_leave(analysis: JointAnalysis, node: fx.Node) -> bool:
    """Whether the value of a node may wait on the host."""
    value = node.meta.get("val")
    if node not in analysis.forward or node.op != "call_function" or not isinstance(value, torch.Tensor):
        return False
    belongs_to_others = node in analysis.held or node in analysis.copied or analysis.is_view(node)
    is_returned = any(analysis.base.get(gradient) is node for gradient in analysis.gradients)
    return not belongs_to_others and not is_returned and value.device.type in SPEEDS and _has_no_gaps(value)


def _has_no_gaps(value: torch.Tensor) -> bool:
    if value.layout is not torch.strided or value.is_conj() or value.is_neg():
        return False
    return torch_compat.is_dense_layout(list(map(costs.size_hint, value.shape)), list(map(costs.size_hint, value.stride())))


def time_of_transfer(node: fx.Node) -> int:
    """Time on the link, there and back."""
    (value,) = costs.tensors_of(node)
    speed = speed_on(value.device)
    seconds = speed.link.seconds(costs.dense_bytes(value))
    return 2 * int(seconds * speed.bytes_per_second) * costs.TIME_PER_BYTE


@dataclass(frozen=True, eq=False)
class Timeline:
    """When each value is used while the halves run, without copies. Times start at 0 in each half.

    Attributes:
        forward, backward: the time that each half takes.
        released: for each value of the forward, how long the forward runs after its last use.
        needed: for each value of the forward, how long the backward runs before its first use.
    """

    forward: int
    backward: int
    released: dict[fx.Node, int]
    needed: dict[fx.Node, int]

    @classmethod
    def of(cls, analysis: JointAnalysis, fuses: bool, flops_per_byte: int | None) -> Timeline:
        ends, total = _last_uses(analysis, fuses, flops_per_byte)
        starts, other = _first_uses(analysis, fuses, flops_per_byte)
        return cls(total, other, {node: total - end for node, end in ends.items()}, starts)

    @property
    def hidden(self) -> int:
        """How long the link may work, there and back, while the device computes."""
        return 2 * min(self.forward, self.backward)

    def transfer(self, analysis: JointAnalysis, node: fx.Node) -> int:
        """Time on the link if the value is offloaded, or `NEVER` if it cannot leave, or not in time."""
        if not can_leave(analysis, node):
            return NEVER
        time = time_of_transfer(node)
        return time if time <= 2 * min(self.released.get(node, 0), self.needed.get(node, 0)) else NEVER


def _last_uses(analysis: JointAnalysis, fuses: bool, flops_per_byte: int | None) -> tuple[dict[fx.Node, int], int]:
    """When the forward uses each value last, and how long it runs."""
    now, ends = 0, {}
    for node in analysis.in_order(analysis.forward):
        now += running_time(analysis, node, fuses, flops_per_byte)
        ends.update((analysis.base[used], now) for used in (node, *node.all_input_nodes))
    return ends, now


def _first_uses(analysis: JointAnalysis, fuses: bool, flops_per_byte: int | None) -> tuple[dict[fx.Node, int], int]:
    """When the backward uses each value first, and how long it runs. A value that it does not read serves its readers."""
    now, starts = 0, {}
    for node in analysis.in_order(analysis.backward):
        for used in node.all_input_nodes:
            starts.setdefault(analysis.base[used], now)
        now += running_time(analysis, node, fuses, flops_per_byte)
    for node in reversed(analysis.nodes):
        if node not in starts and node not in analysis.backward:
            later = [starts[analysis.base[user]] for user in node.users if analysis.base.get(user) in starts]
            starts.update({analysis.base[node]: min(later)} if later else {})
    return starts, now


def running_time(analysis: JointAnalysis, node: fx.Node, fuses: bool, flops_per_byte: int | None) -> int:
    """The time of an op; a fused one only writes its result."""
    if node.op != "call_function" or op_table.is_symbolic_value(node) or op_table.is_getitem(node.target):
        return 0
    if analysis.is_view(node):
        return 0
    if fuses and op_table.is_fusible(node.target):
        return costs.bytes_written(node) * costs.TIME_PER_BYTE
    return costs.time_alone(node, flops_per_byte)
