"""Counters, logs and names of compilations. Nothing here influences a compilation, and any module may import it.

`counters` counts events, `logs` prints the artifacts of `AOTGRAD_LOGS`, `observer` is called after every stage,
`graph_names` names the graph that is being compiled, `code_version` tells which code of aotgrad this is.
"""
