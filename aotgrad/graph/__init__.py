"""Facts about ops and graphs, for every stage; nothing here changes with a compilation.

`op_table` says what an op is, `symbols` which sizes a value mentions, `source_lines` where a node comes from,
`gradient_masks` which gradients an op need not compute, `lazy_module` makes graph modules whose code is written on demand.
`strided_overlap` is an algorithm on integers. Anybody may import all of it.
"""
