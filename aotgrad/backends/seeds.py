"""Seeds of random ops in a graph for Inductor: the backward creates its own.

    seeds = inductor_seeds(2); a = inductor_random(lookup(seeds, 0)); b = inductor_random(lookup(seeds, 1))      b: backward
    ->  seeds = ...; a = inductor_random(lookup(seeds, 0)); own = inductor_seeds(1); b = inductor_random(lookup(own, 0))

Inductor creates all seeds of a joint graph at once. With a seed from the forward, each backward would draw the same numbers.
"""

from __future__ import annotations

import torch
import torch.fx as fx

from aotgrad.graph import op_table


def give_backward_own_seeds(graph: fx.Graph) -> None:
    """Make each random op of the backward start from a seed that the backward creates."""
    for lookup in graph.find_nodes(op="call_function", target=torch.ops.prims.inductor_lookup_seed.default):
        if lookup.meta.get("partitioner_tag") == "is_backward":
            seeds = lookup.args[0]
            with graph.inserting_before(lookup):
                own = graph.call_function(seeds.target, (1, *seeds.args[1:]))
            own.meta = {"val": seeds.meta["val"][:1], "partitioner_tag": "is_backward", "autograd_backward": True}
            lookup.args = (own, 0)
            if not seeds.users:
                graph.erase_node(seeds)


def draw_once(graph: fx.Graph) -> None:
    """Let the backward save what random ops draw on a GPU: a replayed CUDA graph cannot tell the state of a generator."""
    for node in graph.nodes:
        if op_table.draws(node) and op_table.drawing_device(node).type == "cuda":
            node.meta["draws_once"] = True
