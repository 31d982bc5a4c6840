"""What aotgrad uses of Inductor, and changes in it while it compiles.

`compilation` calls it, with its settings, decompositions and cache; `kernels` compiles its C++ kernels; `reinplacing` and
`scheduler` change what its passes of these names do; `backend_name` registers another backend under the name "inductor".
`backends.inductor` and `backends.corrected` use them.
"""
