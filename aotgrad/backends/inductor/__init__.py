"""Inductor as a backend.

`backend.InductorBackend` compiles graphs under one lock, `cpp_kernels` compiles several C++ kernels at once, `wrapper_code`
restores stored code without importing Inductor. Corrections of Inductor are in `backends.corrected`, its private names in
`torch_compat`.
"""
