"""The guards that decide whether a plan may be reused.

`plan` combines the guards of one plan: `memory` (which arguments share memory; `disjoint_storage` answers the usual
case), `tensor_properties` (what the function reads of its arguments), `data_dependent` (conditions on values),
`python_values` and `dictionaries` (Python state). `captured_values` are those that a function finds by the names of its
`code_reads`, in `captured_places`. A module's tensors are in its `module_slots`, its other values are `module_attributes`.
Stages import only `data_dependent`, since a trace asks the questions that it guards, and what finds the values that a
function may change.
"""
