"""A joint graph as a `Program` for the simulation of memory.

In: a `JointAnalysis`. Out: the program, and the number of each node that owns memory. Views are looked through.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch.fx as fx

from aotgrad import op_table
from aotgrad.partition import costs
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.partition.liveness import Program


def program_of(analysis: JointAnalysis) -> tuple[Program, dict[fx.Node, int]]:
    """The values of a joint graph in the order in which they run."""
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
    )
    return program, number


def _size(node: fx.Node) -> int:
    """Bytes that running the op allocates; a tuple's are counted with its items."""
    if node.op in ("placeholder", "get_attr") and "tangents" not in node.name:
        return 0
    if op_table.is_symbolic_value(node) or op_table.is_tuple_value(node):
        return 0
    return costs.bytes_written(node)
