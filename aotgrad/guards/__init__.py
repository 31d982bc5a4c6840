"""What decides that a plan is used again.

`plan` puts the guards of one plan together: `memory` (who shares memory with whom; `disjoint_storage` answers the usual
case), `tensor_properties` (what the function asked of its arguments), `data_dependent` (conditions on values),
`python_values` and `dictionaries` (Python state). Stages import `data_dependent` alone: a trace asks what it guards.
"""
