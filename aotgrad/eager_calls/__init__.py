"""Calls of functions that a trace cannot see into: they run in eager, between the compiled parts of a graph.

`call.py` says what is called and what it returns, `memory.py` which arguments it changes and whose memory its results have,
`forms.py` what a graph knows of them, and `tape.py` keeps the autograd graph of one call for its backward. `modules.py` and
`wrappers.py` are about arguments: modules, and tensor subclasses. `ops.py` has the operators that stand for a call and its
backward in a graph, and `mark.py` the decorator for users.
`capture/eager_calls.py` records them. Imported by the capture, by backends, which leave these operators out of what they
compile, and by the cache, which cannot store them.
"""
