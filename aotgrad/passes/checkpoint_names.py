"""Gives the named values of a graph their policies: what the partition does with them.

    h = mm(x, w); n = view(h)    named "product" by aotgrad.checkpoint_name, which is a view of the whole tensor
    policies: {"product": "offload"}         ->    h.meta["checkpoint_policy"] = "offload"

The policy belongs to the memory, since views are free. `Peephole` removes the views that names leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aotgrad.graph.memory_owners import memory_owner
from aotgrad.passes.base import AnyGraph


@dataclass(frozen=True)
class CheckpointNames:
    """Notes a policy, if its name has one, in the `meta` of each value that the forward names."""

    policies: Mapping[str, str] | tuple[tuple[str, str], ...]
    name: str = "checkpoint_names"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        policies = dict(self.policies)
        for node in graph.module.graph.nodes:
            given = (node.meta.get("custom") or {}).get("checkpoint_name")
            if given in policies and not node.meta.get("autograd_backward"):
                memory_owner(node).meta["checkpoint_policy"] = policies[given]
        return graph
