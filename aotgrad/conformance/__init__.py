"""Holds compiled operators, modules and small programs against eager: `python -m aotgrad check` does it for a backend.

subjects      callables of torch's own databases, with sample inputs
programs      small models, and functions that return views or change what they are given
variants      ways to call each: dtype, layout, form, shapes
observe       runs a call and its backward, and records everything observable
differences   differences between two runs
verdict       what a comparison found
check         one subject, in one variant, compiled -> a verdict
sweep         many tasks, in worker processes that may crash or hang
backend       checks a backend; minimizes its failures
excluded      a backend without some ops
report        the results for a backend, as text and as JSON
tables        what tables of results have in common
progress      a progress bar
command       the command line
"""
