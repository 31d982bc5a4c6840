"""Holds aotgrad against eager on torch's own databases of operators, modules and higher-order operators.

subjects      what there is to call, with sample inputs
variants      how each is called: dtype, layout, form, shapes, decompositions, backend
compilers     aotgrad, and the peer
observe       runs a call and its backward, and notes what can be seen
differences   of two such runs
errors        inputs that eager refuses, and what a compiled operator makes of them
check         one subject, in one variant, by one compiler -> a verdict
sweep         all of them, in worker processes that may crash or hang
report        the verdicts as tables
"""
