"""Partition: a joint graph -> a forward graph, a backward graph, and the list of what is saved between them.

Facts about ops are in `graph/op_table.py`. Steps of a partition:

adapt             `partition`, the stage; partition functions of users
inner_backwards   partitions around backwards that a function runs itself
graphs            assigns nodes to the halves
decision          the input and output of a choice, and its `Objective`
save_all          the plain choice
min_cut           the choice with the least cost
split             extracts the two graphs
crossing          the values that pass between them
compact           saves slices instead of whole tensors
offload_nodes     values that wait on the host
random_state      recomputes random ops with equal numbers
philox            random ops as functions of seed and offset
schedule          the order of the backward's collectives

What may be saved, and what it costs:

items             a joint graph as a `Problem`
policy            which values may be saved or recomputed
tags              the user's wishes
costs             bytes and times of values
fusion            the cost of recomputing in fused kernels
offload_costs     what the link takes for a value
workspace         memory of an op besides its results
speeds            speeds of devices, from data sheets
calibration       speeds of devices, measured

Algorithms on ints, without torch:

problem           which values to save and which to recompute
contraction       a smaller problem with the same solutions
maxflow           minimum cuts
frontier          memory against time
offload_frontier  the same, with the host as a third choice
filling           meets a limit step by step
peak              limits the peak of memory
liveness          simulates the memory of the halves

For reports:

program           a joint graph for the simulation of memory
memory_curve      the memory of a call, op by op
points            the trade of memory for time as numbers
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
