"""Functions that are derived from a compiled function: its derivatives and batches, compiled by the same pipeline.

`derived` describes them, `plans` compiles them, `dispatch` decides which one a call needs. `vjp` computes gradients of
gradients, some at `inner_values`: it runs a `captured_function` once more, and the `rerun_graph` of that backwards. `jvp`
runs calls with dual numbers, `vmap` batches backward graphs, `functorch` runs calls under transforms of `torch.func`.
`subfunctions`, `input_views`, `closure_lifting` and `effects` prepare the function.
"""
