"""What is told of a compilation; nothing here decides anything.

`counters` counts, `logs` prints what `AOTGRAD_LOGS` asks for, `observer` is told of every stage, `graph_names` knows the
graph that is being compiled. Anybody may import it.
"""
