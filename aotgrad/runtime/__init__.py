"""`Compiled` -> `Executable`: Python source that calls the halves, and autograd nodes that run the backward.

`plan.make_plan` decides the `steps` of a call, and `emit` writes them as source. `autograd` has the nodes; `segments` and
`variants` make the graphs that a node runs, of what it `saved`, or by `recomputation`. `zeros`, `anomaly` and
`synthetic_base` are parts of these.
"""
