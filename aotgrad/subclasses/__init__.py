"""Wrapper subclasses of tensors (`__tensor_flatten__`), taken apart at the boundary of a compiled function.

A wrapper is a container of plain tensors, its parts, with a gradient history of its own. Graphs take and return parts. Two
autograd functions connect the histories (`bridge.py`): outside of the graph a wrapper is taken apart before the call and
assembled after it; in the trace it is assembled from the parts, and its results are taken apart.

`forms` describes wrappers, and `bridge` has the autograd functions. `passages` passes gradients between segments in parts,
and `relative` describes gradients of results apart from their sizes. `layout` and `boundary` have the arguments and results
of a call; `plan_cache/wrappers.py` uses them. Stages import only `forms`, `bridge` and `passages`.
"""
