"""Reports for people about compiled functions, outside the pipeline.

`explain` reports on a function (`explanation` is the report's data, which `rows` reads off the stages; `report` is its text,
`page` its page for a browser, `steps` its steps in words), `dynamo` on the graphs that Dynamo makes of a function.
`memory_frontier` is a table of memory against time, `debug_state` the plans of a function. `command_line`, `targets` and
`specs` are `python -m aotgrad`; `plots` draws, with packages that `extras` imports.
"""
