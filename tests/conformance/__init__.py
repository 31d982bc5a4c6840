"""Holds aotgrad against eager on torch's own databases of operators, modules and higher-order operators.

subjects      callables, with sample inputs
variants      ways to call each: dtype, layout, form, shapes, decompositions, backend
compilers     aotgrad, and the peer
observe       runs a call and its backward, and records everything observable
differences   differences between two runs
errors        inputs that eager refuses, and the outcome of compiled operators on them
check         one subject, in one variant, by one compiler -> a verdict
sweep         all of them, in worker processes that may crash or hang
report        the verdicts as tables
"""
