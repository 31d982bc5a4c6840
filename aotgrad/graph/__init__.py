"""Facts about ops and graphs, for every stage; nothing here depends on a compilation. Every room may import these.

op_table             which ops are views, random, effectful, cheap

Nodes and values:

autograd_nodes       nodes of torch's autograd graph
closed_over          tensors that a function has closed over
dependents           what depends on some nodes, and what they depend on
draws                random ops that draw the same numbers
equality             which nodes compute the same
geometry             where a tensor lies in its storage
gradient_masks       which gradients an op can skip
memory_owners        whose memory a value lies in
node_tags            what a node asks of the partition
source_lines         which user code a node comes from
symbols              which symbols a value mentions

Graphs:

copies               copies of graphs
ends                 what a graph returns
floats               Python floats as 0-d tensors
lazy_module          graph modules whose code is generated on demand

Targets of nodes that are no ops:

cases                gradients that a custom function computes in several ways
functionalized_call  calls that change arguments
host_copies          copies to the host and back
kept_calls           calls that a backend keeps whole

Collectives, and algorithms without torch:

collectives          when a collective of a backward runs
early_order          runs blocks of ops as soon as possible
link_schedule        simulates messages beside computations
message_order        when messages start and are waited for
repeats              the layers of a model in the order of its ops
strided_overlap      whether two strided tensors share memory
"""
