"""The entry points of other libraries: Dynamo, the name "inductor", and functorch's names.

`dynamo` is the backend of `torch.compile`, also for graphs with `list_inputs`. The sizes of `symbolic_results` stay
symbolic in the next graph. `install` makes "inductor" mean aotgrad, `accelerate` extends that library's list of names,
and `functorch_names` has the compilers of `functorch.compile`. `checkpoint_name` names values inside a function for
options. `supported_versions` lists what was tested. Only `aotgrad` itself imports them.
"""
