"""Graphs of ops as the user calls them, before autograd and autocast."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from aotgrad.torch_compat.functional_tensors import from_functional, to_functional


def graph_before_autograd(
    function: Callable[..., Sequence[Any]],
    fakes: Sequence[torch.Tensor],
    wanted: Sequence[bool],
    fake_mode: FakeTensorMode,
    decompositions: Mapping[Any, Callable],
) -> fx.GraphModule:
    """The functional graph of `function`; regions without gradients and with autocast are calls that begin and end them.

    Args:
        function: called once, with functional tensors; returns a flat sequence.
        fakes: its arguments, the placeholders of the graph; `wanted`: which of them require grad.
        fake_mode: of the fakes.
        decompositions: op overload -> function.

    Raises:
        RuntimeError: an autograd function is called, whose backward the graph would not have.
    """

    def run(*values: torch.Tensor) -> list[Any]:
        arguments = [to_functional(value).requires_grad_(grad) for value, grad in zip(values, wanted, strict=True)]
        return pytree.tree_map_only(FunctionalTensor, from_functional, list(function(*arguments)))

    mode = FunctionalTensorMode(pre_dispatch=True, export=True, _allow_token_discovery=True)
    with fake_mode, enable_python_dispatcher(), mode, _DetachedData(), _refused_autograd_functions():
        return make_fx(run, decomposition_table=dict(decompositions), pre_dispatch=True)(*fakes)


class _DetachedData(TorchFunctionMode):
    """`x.data` is `x.detach()`, which is recorded."""

    def __torch_function__(self, function: Any, classes: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if function == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            return args[0].detach()
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def _refused_autograd_functions() -> Iterator[None]:
    """Inside, in this thread, calls of autograd functions raise."""
    apply: Any = inspect.getattr_static(torch.autograd.Function, "apply")  # of Python or, since torch 2.15, of C++
    thread = threading.get_ident()

    def refuse_or_run(kind: type, *args: Any, **kwargs: Any) -> Any:
        is_mark = kind.__module__ == "torch.utils.checkpoint"  # of a region, whose ops have gradients of their own
        if is_mark or threading.get_ident() != thread:
            return apply.__get__(None, kind)(*args, **kwargs)
        raise RuntimeError(f"the backward of {kind.__name__}, an autograd function, would be lost")

    with mock.patch.object(torch.autograd.Function, "apply", classmethod(refuse_or_run)):
        yield
