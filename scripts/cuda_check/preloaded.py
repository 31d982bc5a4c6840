"""What is imported once, in the process of which those of the cases are copies (`check.new_processes`)."""

import importlib

import device

device.load()
for name in ("correctness", "runtime", "torch._dynamo", "torch._inductor.compile_fx"):
    importlib.import_module(name)
