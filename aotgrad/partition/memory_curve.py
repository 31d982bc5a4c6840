"""The memory of a call, op by op, as the partitioner simulates it.

    curve = memory_curve(joint, partition, fuses=False)
    max(curve, key=lambda moment: moment.bytes)         the op at the peak

In: a joint graph and its partition. Out: a `Moment` for each op that owns memory: those of the forward in order, then those
of the backward. Memory that the halves do not allocate, such as parameters and arguments of the call, does not count.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch.fx as fx

from aotgrad.ir import JointGraph, Partition
from aotgrad.partition.graphs import analyze_joint
from aotgrad.partition.liveness import simulate
from aotgrad.partition.program import program_of


@dataclass(frozen=True)
class Moment:
    """The most bytes alive while an op runs. `half`: `"forward"` or `"backward"`."""

    half: str
    node: fx.Node
    bytes: int


def memory_curve(joint: JointGraph, partition: Partition, fuses: bool, in_place: Collection[str] = ()) -> list[Moment]:
    """The moments of one call.

    Args:
        joint, partition: of the same function.
        fuses: whether the backend fuses ops into kernels.
        in_place: the names of values that the backend writes into the memory of an input.
    """
    if partition.backward is None:  # the one graph may compute values again, for backwards inside
        joint = replace(joint, module=partition.forward.module, signature=partition.forward.signature)
    analysis, names = analyze_joint(joint), saved_names(joint, partition)
    away = {names[value.slot.name] for value in partition.saved if value.host_bytes}
    program, number = program_of(analysis, fuses, is_timed=bool(away))
    sizes = [0 if node.name in in_place else size for node, size in zip(number, program.sizes, strict=True)]
    owners = {node.name: number[base] for node, base in analysis.base.items() if base in number}
    saved = {owners[name] for name in names.values() if name in owners}
    profile = simulate(replace(program, sizes=sizes), saved, {owners[name] for name in away})
    nodes = list(number)
    computed = [k for k in sorted({*program.forward, *saved}) if nodes[k].op == "call_function"]
    forward = [Moment("forward", nodes[k], profile.in_forward[k]) for k in computed]
    backward = zip(program.backward, profile.backward, strict=False)  # gradients may be recomputed after the last op
    return forward + [Moment("backward", nodes[k], size) for k, size in backward]


def saved_names(joint: JointGraph, partition: Partition) -> dict[str, str]:
    """By name of each saved value, its name in the joint graph: that of what it copies, if only the forward has it."""
    known = {node.name for node in joint.module.graph.nodes}
    forward = partition.forward.module.graph.nodes
    sources = {
        node.name: node.all_input_nodes[0].name for node in forward if node.name not in known and node.all_input_nodes
    }
    return {value.slot.name: sources.get(value.slot.name, value.slot.name) for value in partition.saved}
