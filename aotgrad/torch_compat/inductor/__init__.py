"""The parts of Inductor that aotgrad uses, and what it changes in Inductor during a compilation.

`compilation` calls Inductor, with its settings, decompositions and cache; `kernels` compiles its C++ kernels, with the
instructions that `vector_instructions` finds; `reinplacing` and `scheduler` correct its passes of these names, `lowerings`
those of single ops, `indices` its arithmetic on indices; `backend_name` registers another backend under the name "inductor".
`backends.inductor` and `backends.corrected` use them.
"""
