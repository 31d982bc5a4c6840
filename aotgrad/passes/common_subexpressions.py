"""Computes equal calls once.

    a = cos(x); b = cos(x); return (a * b,)      ->      a = cos(x); return (a * a,)

Two calls are equal if op and arguments are equal. Numbers are compared with their types and bits: `1`, `1.0` and `True`
differ, and so do `0.0` and `-0.0`. Not merged are random ops, unless they draw the same numbers (`meta["draw"]`), ops that
write or have effects, uninitialized memory, ops that make a new symbolic size, outputs (see `memory`), and nodes that
selective checkpointing treats differently.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad.passes import ops, rewrite
from aotgrad.passes.base import AnyGraph
from aotgrad.passes.memory import MemoryOwnership


@dataclass(frozen=True)
class CommonSubexpressionElimination:
    """Computes equal calls once, by value numbering."""

    name: str = "cse"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        memory = MemoryOwnership.of(graph)
        first: dict[Hashable, fx.Node] = {}

        def visit(node: fx.Node) -> fx.Node | None:
            key = expression(node)
            earlier = first.setdefault(key, node) if key is not None else node
            return earlier if earlier is not node and memory.may_replace(node, earlier) else None

        rewrite.replace(graph.module.graph, visit)
        return graph


def expression(node: fx.Node) -> Hashable | None:
    """A key that is equal for nodes that compute the same; `None` for a node that equals no other."""
    draw = node.meta.get("draw")
    if draw is None and not ops.is_pure(node):
        return None
    key = (node.target, argument(node.args), argument(node.kwargs), rewrite.recompute_policy(node), draw)
    try:
        hash(key)
    except TypeError:  # an argument cannot be compared by value
        return None
    return key


def argument(value: Any) -> Any:
    """A key that is equal for equal arguments. Nodes are their own keys."""
    match value:
        case list() | tuple():
            return tuple(map(argument, value))
        case dict():
            return tuple((name, argument(value[name])) for name in sorted(value))
        case slice():
            return (slice, argument((value.start, value.stop, value.step)))
        case float():
            return (float, value.hex())
        case complex():
            return (complex, value.real.hex(), value.imag.hex())
        case fx.Node() | torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return value
    return (type(value), value)
