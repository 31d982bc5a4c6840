"""A function and the specs of its inputs -> `Capture`: the function runs once on fake tensors, under functionalization.

`trace.capture_function` is the stage; `fake.make_input_specs` makes its input. `fast_recorder` and `recorder` write nodes,
`function_mode` intercepts calls of torch functions, `functional` makes the traced arguments, `regions` handles checkpoints,
and `values` handles numbers that depend on data. `hooks`, `views_before_mutation`, `gradient_aliases`, `repeats` and
`indexing` record what the graph does not show.
"""
