"""`Compiled` -> `Executable`: Python source that calls the halves, and autograd nodes that run the backward.

`schedule` lists the `steps` of a call: `view_steps`, `mutation_steps` and `node_steps` read them off the `stage_results`.
`emit` writes them as source, with a `writer`. `autograd` has the autograd nodes, and `backward` what they run: `variants`
of the graphs of `segments`, on `saved_tensors`, some `overwritable`, or by `recomputation`. `inlined` is for compiled
autograd, `reused_memory` for CUDA graphs, and `zeros`, `anomaly` and `synthetic_base` are parts of these.
"""
