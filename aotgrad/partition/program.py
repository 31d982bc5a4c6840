"""A joint graph as a `Program` for the simulation of memory.

In: a `JointAnalysis`, and whether the backend fuses ops. Out: the program, and the number of each node that owns memory.
Views count as their bases. A backend that does not fuse runs the ops as they are: they may write into dying memory, and
each has a workspace of its own. For fused kernels, neither is known.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.partition import costs, workspace
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.partition.liveness import Program
from aotgrad.partition.offload_costs import can_leave, running_time, time_of_transfer


def program_of(
    analysis: JointAnalysis, fuses: bool = True, flops_per_byte: int | None = None, is_timed: bool = False
) -> tuple[Program, dict[fx.Node, int]]:
    """The values of a joint graph in execution order; `is_timed`: with times, which tell when offloaded values travel."""
    live = analysis.forward | analysis.unclaimed | analysis.backward | analysis.tangents.keys() | analysis.primals.keys()
    owners = [node for node in analysis.nodes if node in live and not analysis.is_view(node)]
    number = {node: k for k, node in enumerate(owners)}

    def numbers(values: Iterable[object]) -> list[int]:
        return [number[analysis.base[value]] for value in values if isinstance(value, fx.Node)]

    program = Program(
        sizes=[_size(node) for node in owners],
        reads=[list(dict.fromkeys(numbers(node.all_input_nodes))) for node in owners],
        forward=[number[node] for node in owners if node in analysis.forward],
        backward=[number[node] for node in owners if node in analysis.backward],
        results=frozenset(numbers(analysis.results)),
        tangents=[number[node] for node in analysis.tangents],
        gradients=frozenset(numbers(analysis.gradients)),
        workspace={} if fuses else {number[node]: needed for node in owners if (needed := workspace.bytes_needed(node))},
        overwrites={} if fuses else {number[node]: tuple(numbers(found)) for node in owners if (found := overwritten(node))},
        times=[running_time(analysis, node, fuses, flops_per_byte) for node in owners] if is_timed else (),
        trips={number[node]: time_of_transfer(node) // 2 for node in owners if is_timed and can_leave(analysis, node)},
    )
    return program, number


def _size(node: fx.Node) -> int:
    """Bytes that running the op allocates; those of a tuple count for its items."""
    if node.op in ("placeholder", "get_attr") and "tangents" not in node.name:
        return 0
    if op_table.is_symbolic_value(node) or op_table.is_tuple_value(node):
        return 0
    return costs.bytes_written(node)


def overwritten(node: fx.Node) -> list[fx.Node]:
    """The arguments whose memory the op may write its result into, if it reads them last."""
    if not op_table.may_overwrite(node.target):
        return []
    nodes = [arg for arg in node.args if isinstance(arg, fx.Node)]
    fresh = [arg for arg in nodes if op_table.is_fresh(arg.target)]
    return [arg for arg in fresh if nodes.count(arg) == 1 and _geometry(arg) == _geometry(node) is not None]


def _geometry(node: fx.Node) -> tuple[object, ...] | None:
    """Equal for two tensors that may use the same memory; `None` for values other than plain tensors."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    extents = zip(value.shape, value.stride(), strict=True)
    return value.dtype, value.device, [(costs.size_hint(size), costs.size_hint(stride)) for size, stride in extents]
