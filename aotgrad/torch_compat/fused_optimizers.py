"""The fused updates of optimizers, `torch._fused_adam_` and others, as functional ops in a trace.

Their schemas take no symbolic floats, functionalization refuses their empty lists, and some have no shape function.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, get_proxy_mode, track_tensor_tree
from torch.optim import optimizer

from aotgrad.torch_compat.functional_tensors import from_functional, replace_value
from aotgrad.torch_compat.ops import arguments_by_name, written_names
from aotgrad.torch_compat.recording import hidden_tracing_modes, proxy_node

_NAMES = ("_fused_adagrad", "_fused_adam", "_fused_adamw", "_fused_sgd")

FUSED_UPDATES: Mapping[Any, tuple[Any, Any]] = {
    getattr(torch, f"{name}_"): (getattr(torch.ops.aten, name), getattr(torch.ops.aten, f"{name}_")) for name in _NAMES
}
"""The functions that optimizers call, each with the functional op and the one in place."""


def record_fused_update(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Record a call of one of `FUSED_UPDATES`, and give the tensors that it changes their new values.

    As in eager, their version counters stay as they are.
    """
    functional, in_place = FUSED_UPDATES[function]
    overload = "tensor_lr" if isinstance(kwargs["lr"], torch.Tensor) else "default"
    writing = getattr(in_place, overload)
    written, given = written_names(writing), arguments_by_name(writing, args, kwargs)
    with torch._C.DisableTorchFunction():
        values = pytree.tree_map_only(FunctionalTensor, from_functional, given)
        with hidden_tracing_modes():
            results = tuple([torch.empty_like(each) for each in values[name]] for name in written)
        _record(getattr(functional, overload), values, results)
        for name, fakes in zip(written, results, strict=True):
            if name != "grads" or given.get("grad_scale") is not None:
                for tensor, fake in zip(given[name], fakes, strict=True):
                    replace_value(tensor, fake)


@contextlib.contextmanager
def default_foreach(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside, optimizers choose ops on lists by default where they would for these tensors, if these are plain."""
    plain = optimizer._foreach_supported_types
    kinds = [*plain, FunctionalTensor] if {*map(type, tensors)} <= {*plain} else plain
    with mock.patch.object(optimizer, "_foreach_supported_types", kinds):
        yield


def record_float(function: Any, args: Sequence[Any]) -> torch.SymFloat:
    """Record a call of a function of floats, at least one of them symbolic, whose result is a float of its own."""
    symbolic = next(value for value in args if isinstance(value, torch.SymFloat))
    number = symbolic.node.shape_env.create_unbacked_symfloat()
    _record(function, dict(enumerate(args)), number)
    return number


def _record(function: Any, values: dict, results: Any) -> None:
    """Record a call with its results; `values` are its arguments by name or position."""
    mode: Any = get_proxy_mode()
    tracer: PythonKeyTracer = mode.tracer
    proxies = {name: _proxies(value, tracer) for name, value in values.items()}
    args = tuple(value for name, value in proxies.items() if isinstance(name, int))
    kwargs = {name: value for name, value in proxies.items() if isinstance(name, str)}
    track_tensor_tree(results, tracer.create_proxy("call_function", function, args, kwargs), constant=None, tracer=tracer)


def _proxies(value: Any, tracer: PythonKeyTracer) -> Any:
    """A value with proxies for its tensors and symbolic numbers."""
    kinds = (torch.Tensor, torch.SymInt, torch.SymFloat)
    return pytree.tree_map_only(kinds, lambda each: fx.Proxy(_node(each, tracer), tracer), value)


def _node(value: Any, tracer: PythonKeyTracer) -> fx.Node:
    node = proxy_node(value, tracer)
    assert node is not None, "it was traced"
    return node
