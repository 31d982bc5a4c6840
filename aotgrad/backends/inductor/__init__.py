"""Inductor as a backend.

`backend.InductorBackend` compiles graphs under one lock, `cpp_kernels` compiles the C++ kernels of several graphs at once,
`wrapper_code` calls them without what the wrapper of torch does around them. What Inductor gets wrong is next door, in
`backends.corrected`; its private names are in `torch_compat`.
"""
