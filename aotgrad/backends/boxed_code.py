"""The generated code of a graph as a callable that takes its arguments in one list, so that it frees dead ones."""

from __future__ import annotations

from typing import Any

import torch.fx as fx
from torch.fx.graph import CodeGen

from aotgrad.ir import BoxedCallable


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
