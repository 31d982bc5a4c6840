"""Wrapper subclasses of tensors (`__tensor_flatten__`), taken apart at the boundary of a compiled function.

A wrapper is a container of plain tensors, its parts, with a gradient history of its own. Graphs take and return parts. Two
autograd functions connect the histories (`bridge.py`): outside of the graph a wrapper is taken apart before the call and
assembled after it; in the trace it is assembled from the parts, and its results are taken apart.

Import `forms` and `bridge`; the arguments and results of calls are in `plan_cache/wrappers.py`.
"""
