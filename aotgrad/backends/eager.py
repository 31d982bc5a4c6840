"""The `eager` backend: the graph's own generated code, boxed.

Each input is freed at its last use, dead buffers of the graph are reused (`buffer_reuse.py`), and inputs that the graph
writes to are updated in place (`in_place_updates.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx as fx
from torch.fx.graph import CodeGen

from aotgrad.backends.base import FunctionBackend, make_boxed_func
from aotgrad.backends.buffer_reuse import reuse_buffers
from aotgrad.backends.in_place_updates import update_in_place
from aotgrad.ir import BoxedCallable


def compile_eager(module: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
    """The graph's code with arguments in one list, so that dead ones are freed while it runs, and with buffers reused."""
    return boxed_code(reuse_buffers(update_in_place(module)))


def boxed_code(module: fx.GraphModule) -> BoxedCallable:
    """The generated code of a graph, unchanged, with arguments in one list."""
    module.graph.set_codegen(BoxedCodeGen())
    module.recompile()
    forward = module.forward
    function = forward.__func__ if hasattr(forward, "__func__") else forward

    def run(args: list) -> Any:
        return function(module, args)

    run._boxed_call = True
    return run


class BoxedCodeGen(CodeGen):
    """Generated code that takes its arguments in one list, which it clears."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **options: Any) -> str:
        names = [variable.split(":")[0].split("=")[0].strip() for variable in free_vars if variable != "self"]
        unpack = f"\n    {', '.join(names)}, = args" if names else ""
        return f"def forward(self, args){maybe_return_annotation}:{unpack}\n    args.clear()"


def nop(fx_g: fx.GraphModule, _: Sequence[Any]) -> BoxedCallable:
    """A compiler that returns the graph unchanged, for tests and for inspection."""
    return make_boxed_func(fx_g.forward)


EAGER = FunctionBackend("eager", compile_eager, fuses=False, key="")
