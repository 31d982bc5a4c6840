"""Whose memory each value is in, and which replacements a caller could notice.

In: a graph with its signature. Out: `MemoryOwnership`. A caller sees which outputs share memory with each other and with
inputs, and whether a backward raises because a saved value was changed. So a value in memory of its own may be replaced by
an equal one in other memory only if

    its memory is not that of an output                  a fresh output stays fresh
    the caller cannot write to the other memory          if a backward follows, which may save the value: the caller may
                                                         change an input or output before it

A value may always be replaced by another one in the same memory.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.graph.memory_owners import memory_owners
from aotgrad.ir import GraphHalf, JointGraph
from aotgrad.passes import ops
from aotgrad.slots import FORWARD_RESULTS, Primal


@dataclass(frozen=True)
class MemoryOwnership:
    """`owner`: the node that each node's memory belongs to. `fixed`: owners that must not be replaced.

    `held`: owners that the caller can write to between the forward and the backward. `absolute`: owners that are read by
    position in their storage, independent of the value's own offset.
    """

    owner: dict[fx.Node, fx.Node]
    fixed: frozenset[fx.Node]
    held: frozenset[fx.Node]
    absolute: frozenset[fx.Node]

    @classmethod
    def of(cls, graph: JointGraph | GraphHalf) -> MemoryOwnership:
        nodes = list(graph.module.graph.nodes)
        owner = memory_owners(nodes)
        results = nodes[-1].args[0]
        by_slot = [*zip(graph.signature.inputs, nodes, strict=False), *zip(graph.signature.outputs, results, strict=True)]
        opaque = {owner[arg] for node in nodes if ops.node_is_opaque(node) for arg in node.all_input_nodes}
        absolute = {owner[node.args[0]] for node in nodes if op_table.is_absolute(node.target)}
        outputs = {owner[node] for node in results if isinstance(node, fx.Node)}
        held = {owner[node] for slot, node in by_slot if isinstance(slot, (Primal, *FORWARD_RESULTS)) and node in owner}
        crosses = bool(graph.signature.tangents or graph.signature.saved)
        fixed = with_tuples(nodes, outputs | opaque)
        return cls(owner, fixed, with_tuples(nodes, held | opaque) if crosses else frozenset(), frozenset(absolute))

    def may_replace(self, old: fx.Node, new: fx.Node) -> bool:
        """Whether replacing `old` by `new`, which has the same value, is unobservable."""
        ours, theirs = self.owner.get(old, old), self.owner.get(new, new)
        if ours in self.absolute and not (ours is old and theirs is new and new.op == "call_function"):
            return ours is theirs
        return ours is theirs or (ours not in self.fixed and theirs not in self.held)


def with_tuples(nodes: Iterable[fx.Node], owned: set[fx.Node]) -> frozenset[fx.Node]:
    """`owned`, and the ops that returned one of them in a tuple."""
    return frozenset(owned) | {ops.args_of(node)[0] for node in nodes if node.target is operator.getitem and node in owned}
