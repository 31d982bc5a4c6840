"""Partition: a joint graph -> a forward graph, a backward graph, and the list of what is saved between them.

`adapt.partition` is the stage. `graphs` says which half must run what; a chooser (`save_all`, `min_cut`) picks the
values to save; `split` extracts the two graphs. What is known of ops is in `op_table`, what values cost in `costs`,
what may be saved or run again in `policy`, and the flow algorithm, which knows nothing of graphs of ops, in `maxflow`.
"""

from aotgrad.partition.adapt import default_partition, min_cut_rematerialization_partition, partition

__all__ = ["default_partition", "min_cut_rematerialization_partition", "partition"]
