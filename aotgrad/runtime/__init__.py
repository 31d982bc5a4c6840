"""`Compiled` -> `Executable`: Python source that calls the halves, and autograd nodes that run the backward.

stage_results    the results of earlier stages, as the steps need them
schedule         lists the steps of a call
steps            the classes of steps: what each reads, emits and does
view_steps       steps that make views and return outputs
mutation_steps   steps that write inputs
node_steps       steps that make autograd nodes
emit             a schedule -> one function
writer           the source text, while steps write it
synthetic_base   overlapping arguments as one flat tensor
reused_memory    copies of results in memory that CUDA graphs reuse

autograd         the autograd node of a segment
native_node      the same in C++
inner_values     values through which gradients of gradients pass to a node
backward         what a node runs
backward_facts   facts about a backward graph that are stored beside it
segments         the graph of each segment
variants         the rest of it for some tangents and gradients
zeros            removes what undefined tangents need
saved_tensors    what a node saves
overwritable     which saved values a backward may write over
recomputation    the inputs of gradients of gradients
repeated_calls   calls that a checkpoint repeats in a backward
inlined          a backward as a part of compiled autograd's graph
anomaly          the backward under `detect_anomaly`
"""
