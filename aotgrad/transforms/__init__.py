"""Functions derived from a compiled function: derivatives, batches, and what `torch.func` asks for.

`vjp` and `jvp` differentiate a function as compiled functions of their own, `vmap` batches backward graphs, `functorch` runs
compiled functions under transforms. `subfunctions`, `input_views`, `closure_lifting` and `effects` prepare the function.
`plan_cache` imports `functorch` and `jvp`, and the compiler `vjp`.
"""
