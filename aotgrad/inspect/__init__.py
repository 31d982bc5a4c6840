"""For people: looking at what is compiled, outside of the pipeline.

`explain` reports on a function (`explanation` is the report's data, `report` its text, `steps` and `targets` parts of it),
`dynamo` on what Dynamo made of one. `memory_frontier` is the table of memory against time, `debug_state` what a function
holds, `specs` and `command_line` are `python -m aotgrad`.
"""
