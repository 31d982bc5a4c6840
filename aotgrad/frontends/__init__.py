"""The ways in that are not ours: Dynamo, the name "inductor", and functorch's names.

`dynamo` is the backend of `torch.compile`, `install` makes "inductor" mean aotgrad, `accelerate` adds to that library's
list of names, `functorch_names` has the compilers of `functorch.compile`. `supported_versions` says what was tested. Only
`aotgrad` itself imports them.
"""
