"""Inductor as a backend.

`backend.InductorBackend` compiles graphs under one lock, `cpp_kernels` compiles several C++ kernels at once, and
`compiler_threads` wait for the compilers. `assembly` says in text how a graph was compiled, `wrapper_code` restores stored
code without importing Inductor. Corrections of Inductor are in `backends.corrected`, its private names in `torch_compat`.
"""
