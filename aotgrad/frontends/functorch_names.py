"""Compilers for `aot_function`, under their names in `functorch.compile`.

    aot_function(f, print_compile)              prints each graph and runs it unchanged
    aot_function(f, draw_graph_compile("g"))    draws it to g.svg as well (needs pydot and graphviz)
    aot_function(f, ts_compile)                 TorchScript compiles it
    memory_efficient_fusion(f)                  TorchScript, and little is saved for the backward

Torch has deprecated TorchScript, and warns; the `inductor` backend replaces it.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.fx as fx
from torch import nn

from aotgrad import torch_compat
from aotgrad.api import aot_function, aot_module
from aotgrad.backends import make_boxed_compiler
from aotgrad.partition import min_cut_rematerialization_partition

aten = torch.ops.aten

DECOMPOSED = (
    aten.conj_physical,
    aten.cudnn_batch_norm,
    aten.cudnn_batch_norm_backward,
    aten.elu,
    aten.elu_backward,
    aten.gelu_backward,
    aten.hardsigmoid,
    aten.hardsigmoid_backward,
    aten.hardswish,
    aten.hardswish_backward,
    aten.hardtanh,
    aten.hardtanh_backward,
    aten.is_same_size,
    aten.leaky_relu,
    aten.leaky_relu_backward,
    aten.masked_fill.Scalar,
    aten.masked_fill.Tensor,
    aten.sigmoid_backward,
    aten.silu_backward,
    aten.tanh_backward,
    aten.threshold_backward,
)
"""Ops to decompose for a pointwise fuser. Not `detach`, which marks where a view cuts autograd off."""

default_decompositions: Mapping[Any, Callable] = torch_compat.decompositions_of(DECOMPOSED)
"""Op overload -> function: the decompositions of `memory_efficient_fusion`."""


@make_boxed_compiler
def print_compile(fx_g: fx.GraphModule, _: Any) -> fx.GraphModule:
    """Print a graph's code, and run the graph unchanged."""
    print(fx_g.code)
    return fx_g


# --- TorchScript -----------------------------------------------------------------------------------------------------


@make_boxed_compiler
def ts_compile(fx_g: fx.GraphModule, inps: Sequence[Any]) -> torch.jit.ScriptModule:
    """Compile a graph with TorchScript, frozen and optimized for inference.

    Args:
        fx_g: a graph of ATen ops; overloads are removed in place, since TorchScript resolves them itself.
        inps: the graph's inputs; with real inputs, it runs once to warm up TorchScript's profiler.

    Raises:
        RuntimeError: from TorchScript, for ops and arguments that it does not support, such as symbolic sizes.
    """
    for node in fx_g.graph.nodes:
        node.kwargs = {name: value.type if isinstance(value, torch.device) else value for name, value in node.kwargs.items()}
        if str(node.target) == "aten._to_copy.default" and len(node.args) == 1 and list(node.kwargs) == ["dtype"]:
            node.target = aten.to.dtype
    with torch_compat.no_jit_autocast():
        compiled = torch.jit.optimize_for_inference(to_torchscript(fx_g))
        if not any(isinstance(value, torch_compat.FakeTensor) for value in inps):
            compiled(*inps)
    return compiled


@make_boxed_compiler
def simple_ts_compile(fx_g: fx.GraphModule, _: Any) -> torch.jit.ScriptModule:
    """Compile a graph with TorchScript, frozen."""
    return to_torchscript(fx_g)


def to_torchscript(module: fx.GraphModule) -> torch.jit.ScriptModule:
    """The graph as TorchScript, which names ops without their overloads."""
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            node.target = node.target.overloadpacket
    module.recompile()
    return torch.jit.freeze(torch.jit.script(module).eval())


def nnc_jit(f: Callable) -> Callable:
    """`aot_function` with TorchScript, whose fuser for CPUs was called NNC."""
    return aot_function(f, simple_ts_compile)


def memory_efficient_fusion(fn: Callable | nn.Module, **kwargs: Any) -> Callable | nn.Module:
    """Compile a function or module with TorchScript, and recompute cheap values in the backward instead of saving them.

    Args:
        fn: a function of tensors, or a module.
        **kwargs: for `aot_function`. They override these: `fw_compiler` and `bw_compiler` (`ts_compile`), `partition_fn`
            (`min_cut_rematerialization_partition`), `decompositions` (`default_decompositions`).

    Returns:
        The result of `aot_function` or `aot_module`.
    """
    settings: dict[str, Any] = {
        "fw_compiler": ts_compile,
        "bw_compiler": ts_compile,
        "partition_fn": min_cut_rematerialization_partition,
        "decompositions": default_decompositions,
    }
    settings.update(kwargs)
    return aot_module(fn, **settings) if isinstance(fn, nn.Module) else aot_function(fn, **settings)


# --- Drawing ---------------------------------------------------------------------------------------------------------

DEFAULT_FORMAT = ".svg"


def draw_graph(
    traced: fx.GraphModule,
    fname: str,
    figname: str = "fx_graph",
    clear_meta: bool = True,
    prog: str | list[str] | None = None,
    parse_stack_trace: bool = False,
    dot_graph_shape: str | None = None,
) -> None:
    """Draw a graph to a file.

    Args:
        traced: the graph.
        fname: the file. Its ending is the format, by default `.svg`; `.dot` needs no graphviz.
        figname: the name of the drawing.
        clear_meta: leave types and shapes out.
        prog: graphviz's layout program.
        parse_stack_trace: write the user's lines into the nodes.
        dot_graph_shape: the shape of a node; `None` means `"record"`.

    Raises:
        RuntimeError: pydot is not installed.
        FileNotFoundError: graphviz is not installed.
    """
    from torch.fx.passes.graph_drawer import FxGraphDrawer

    if clear_meta:
        traced = fx.GraphModule(traced, copy.deepcopy(traced.graph))
        for node in traced.graph.nodes:
            node.meta = {}
    base, ending = os.path.splitext(fname)
    ending = ending or DEFAULT_FORMAT
    drawer = FxGraphDrawer(traced, figname, parse_stack_trace=parse_stack_trace, dot_graph_shape=dot_graph_shape)
    dot = drawer.get_main_dot_graph()
    if ending in (".dot", ".raw"):
        dot.write(f"{base}{ending}")
    else:
        dot.write(f"{base}{ending}", prog=cast(Any, prog), format=ending.removeprefix("."))  # pydot takes a list, too


def draw_graph_compile(name: str) -> Callable[[fx.GraphModule, Sequence[Any]], Callable]:
    """A compiler that prints each graph and draws it to the file `name`, see `draw_graph`."""
    return make_boxed_compiler(functools.partial(_print_and_draw, name=name))


def _print_and_draw(module: fx.GraphModule, _: Sequence[Any], name: str) -> fx.GraphModule:
    print(module.code)
    draw_graph(module, name)
    return module
