"""Partition: a joint graph -> a forward graph, a backward graph, and the list of what is saved between them.

`adapt.partition` is the stage. `graphs` assigns ops to the halves; a chooser (`save_all`, `min_cut`) decides what to save
for an `Objective`; `split` extracts the two graphs, `crossing` has the values that pass between them. Facts about ops are in
`graph/op_table.py`, the user's tags in `tags`, what may be saved or recomputed in `policy`, and costs in `costs` and
`fusion`. `problem`, `frontier`, `offload_frontier` and `maxflow` find the best choice; they handle ints, not ops. `philox`
makes the halves functions of seed and offset, if that is wanted.
"""

from aotgrad.partition.adapt import (
    default_partition,
    is_typed,
    min_cut_rematerialization_partition,
    partition,
    recompute_all_partition,
)
from aotgrad.partition.decision import Objective
from aotgrad.partition.philox import functionalize_rng
from aotgrad.partition.points import FrontierPoint, frontier_points

__all__ = [
    "FrontierPoint",
    "Objective",
    "default_partition",
    "frontier_points",
    "functionalize_rng",
    "is_typed",
    "min_cut_rematerialization_partition",
    "partition",
    "recompute_all_partition",
]
