"""Compiled autograd: torch records a whole backward as one graph, with copies of the graphs of nodes, and compiles it."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.fx as fx
from torch._dynamo.external_utils import FakeBackwardCFunction
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from aotgrad.torch_compat.dynamo import hide_from_dynamo

_ENGINE = torch._C._dynamo.compiled_autograd


@contextlib.contextmanager
def no_compiled_autograd() -> Iterator[None]:
    """Inside, compiled autograd records no backward."""
    compiler, is_dynamic = _ENGINE.set_autograd_compiler(None, False)
    try:
        yield
    finally:
        _ENGINE.set_autograd_compiler(compiler, is_dynamic)


class InlinedNode(Protocol):
    """The backward of an autograd node as compiled autograd records it.

    It calls `inputs` in its graph, then runs a copy of `graph`, and returns `results`. Symbolic sizes are the first inputs.
    """

    def graph(self, defined: Sequence[bool]) -> fx.GraphModule:
        """The graph for the gradients that are `defined`. It may be changed."""
        ...

    def inputs(self, saved: Sequence[Any], sizes: Sequence[Any], unused: Sequence[Any], tangents: Sequence[Any]) -> Any:
        """The inputs of the graph, from what the node saved and the gradients that arrive."""
        ...

    def results(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """The gradients that the node returns, from the results of the graph."""
        ...


def compile_nodes_of(
    function: type[torch.autograd.Function],
    handover: Callable[[Any], type[torch.autograd.Function]],
    sizes: Callable[[Any], Sequence[int]],
) -> None:
    """Call `handover` for each node of a function in a backward that compiled autograd records or repeats.

    It returns the function whose node this is from now on, made by `inlined`; or one whose backward runs outside of the
    graph. `sizes` gives the symbolic sizes of a node.
    """

    @hide_from_dynamo
    def key(ctx: Any) -> tuple[int, ...]:
        _add_defined_gradients()
        kind: Any = handover(ctx)
        ctx._forward_cls = kind
        return (kind._backward_cls._autograd_function_id, *(sizes(ctx) if hasattr(kind, "_aot_id") else ()))

    function._compiled_autograd_key = staticmethod(key)
    function._backward_cls.symints = property(lambda ctx: list(sizes(ctx)))


@functools.cache
def _add_defined_gradients() -> None:
    """Let compiled autograd add gradients when one is undefined, as eager does. Torch raises a `TypeError`."""
    from torch._dynamo.compiled_autograd import AutogradCompilerInstance

    original = AutogradCompilerInstance.accumulate

    @hide_from_dynamo
    @functools.wraps(original)
    def accumulate(self: AutogradCompilerInstance, *gradients: Any) -> Any:
        result = original(self, *gradients)
        addition = next(iter(reversed(self.fx_tracer.graph.nodes)))
        if addition.target is torch.add:
            addition.target = _sum_of_defined
        return result

    AutogradCompilerInstance.accumulate = accumulate


def _sum_of_defined(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return torch.add(first, second)


def inlined(function: type[torch.autograd.Function], node: InlinedNode) -> type[torch.autograd.Function]:
    """A subclass of a function, whose nodes compiled autograd records as `node` says. Torch can do so from 2.13 on."""
    from torch._dynamo.compiled_autograd import CachedAutogradLazyBackwardCompileInfo

    members: dict[str, Any] = {
        "_lazy_backward_info": CachedAutogradLazyBackwardCompileInfo(lambda: _GraphOfRecordedNode(node)),
        "_bw_prologue_fn": staticmethod(node.inputs),
        "_bw_epilogue_fn": staticmethod(node.results),
        "maybe_subclass_metadata": None,
        "metadata": SimpleNamespace(output_info=[SimpleNamespace(requires_grad=True)]),  # refuses create_graph=True
    }
    kind: Any = type(function.__name__, (function,), members)
    kind._aot_id = f"grad{kind._backward_cls._autograd_function_id}"  # names the nodes of its graph
    return kind


class _GraphOfRecordedNode:
    """The graph to copy. It is read after the call that makes its inputs was recorded, which shows the gradients."""

    def __init__(self, node: InlinedNode) -> None:
        self._node = node

    @functools.cached_property
    def _module(self) -> fx.GraphModule:
        recorded: Any = torch.fx.experimental.proxy_tensor.get_proxy_mode()
        call = next(iter(reversed(recorded.tracer.graph.nodes)))
        *_, tangents = call.args
        return self._node.graph([tangent is not None for tangent in tangents])

    @torch._dynamo.disable  # a compiled call of `backward` would trace the copy itself
    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return _with_code(value) if isinstance(value, fx.GraphModule) else value


def _with_code(region: fx.GraphModule) -> fx.GraphModule:
    """A copy of a region that has its code: Dynamo refuses one that generates it later."""
    copied = fx.GraphModule(region, copy.deepcopy(region.graph))
    for name, inside in copied.named_children():
        if isinstance(inside, fx.GraphModule):
            setattr(copied, name, _with_code(inside))
    return copied


def accumulate_into_leaves(module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Make the graph of a backward accumulate the gradients of wrapper subclasses for leaves, which they are outside.

    In a trace a wrapper has the history of its parts, and torch asks whether a parameter has one.
    """
    placeholders = zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True)
    wrappers = [node for node, value in placeholders if is_traceable_wrapper_subclass(value)]
    for user in [user for node in wrappers for user in node.users if _is_accumulation(user)]:
        with module.graph.inserting_before(user):
            leaf = module.graph.call_function(_as_leaf, (user.args[1],))
        user.args = (user.args[0], leaf, *user.args[2:])


def _is_accumulation(node: fx.Node) -> bool:
    is_op = isinstance(node.target, torch._dynamo.compiled_autograd.Op)
    return is_op and getattr(node.target, "__name__", "").endswith("AccumulateGrad")


def _as_leaf(parameter: torch.Tensor) -> torch.Tensor:
    return parameter if parameter.is_leaf else parameter.detach().requires_grad_(parameter.requires_grad)


def called_in_graph(function: Callable) -> Callable:
    """A function that graphs of Dynamo call as it is: Dynamo runs it for fake tensors and traces nothing of it."""

    def call(*args: Any) -> Any:
        return function(*args)

    torch._dynamo.allow_in_graph(call)
    return call


def graph_break(reason: str) -> Exception:
    """An error that makes Dynamo break its graph before a call of `called_in_graph` that raises it."""
    return torch._dynamo.exc.Unsupported(reason)


def recorded_node(ctx: Any) -> Any:
    """The node whose backward compiled autograd calls with a `ctx` of its own; `None` for the `ctx` of a running node."""
    return ctx.real if isinstance(ctx, FakeBackwardCFunction) else None


@functools.cache
def can_inline() -> bool:
    """Whether compiled autograd asks an autograd function how its graph is called."""
    from torch._dynamo.compiled_autograd import AutogradCompilerInstance

    return "_bw_prologue_fn" in inspect.getsource(AutogradCompilerInstance.proxy_call_aot_backward)
