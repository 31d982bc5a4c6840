"""A function and the specs of its inputs -> `Capture`: the function runs once on fake tensors, under functionalization.

`trace.capture_function` is the stage, and `fake.make_input_specs` makes what it starts from. `fast_recorder` and `recorder`
write nodes, `functional` and `regions` deal with subgraphs, `values` with numbers that depend on data; `hooks`,
`views_before_mutation`, `gradient_aliases`, `repeats` and `indexing` note what the graph does not show.
"""
