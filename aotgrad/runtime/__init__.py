"""`Compiled` -> `Executable`: Python source that calls the halves, and autograd nodes that run the backward.

`schedule` decides the `steps` of a call, and `emit` writes them as source. `autograd` has the autograd nodes. `segments`
and `variants` make the graphs that a node runs; `saved` and `recomputation` have their inputs. `zeros`, `anomaly` and
`synthetic_base` are parts of these.
"""
