"""Facts about ops and graphs, for every stage; nothing here depends on a compilation.

`op_table` classifies ops, `equality` says which nodes compute the same, `memory_owners` whose memory a value lies in,
`copies` copies graphs, `ends` has what they return, `symbols` which symbols a value mentions, `source_lines` which user
code a node comes from, `gradient_masks` which gradients an op can skip. `geometry` has the place of a tensor in its
storage, `lazy_module` graph modules whose code is generated on demand. `strided_overlap` is an algorithm on integers;
`link_schedule` and `message_order` simulate and arrange messages. `collectives` says when those of a backward run. Every
room may import these.
"""
