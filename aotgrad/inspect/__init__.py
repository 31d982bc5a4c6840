"""Reports for people about compiled functions, outside the pipeline.

`explain` reports on a function (`explanation` is the report's data, `report` its text, `steps` its steps in words), `dynamo`
on the graphs that Dynamo makes of a function. `memory_frontier` is a table of memory against time, `debug_state` the plans
of a function. `command_line`, `targets` and `specs` are `python -m aotgrad`.
"""
