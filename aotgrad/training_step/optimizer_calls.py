"""What optimizers compute with Python or with ops that no trace records, as nodes of the trace.

with recorded_calls([optimizer]):
    optimizer.step()                max(1, step - t0) is a node; so is torch._fused_adam_(...)
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.subclasses.forms import TensorForm, form_of, is_wrapper, parts_of


class FusedUpdates(TorchFunctionMode):
    """Records the fused updates of optimizers."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in torch_compat.FUSED_UPDATES:
            return torch_compat.record_fused_update(function, local_lists(args), kwargs or {})
        return function(*args, **(kwargs or {}))


def local_lists(args: Sequence[Any]) -> list[Any]:
    """The arguments of a fused update, with the parts of wrappers in their place: it computes element by element.

    Raises:
        CaptureError: the gradient or state of a parameter is distributed in another way than the parameter.
    """
    forms = [form_of(parameter) for parameter in args[0]]
    return [local_list(value, forms) if isinstance(value, (list, tuple)) else value for value in args]


def local_list(tensors: Sequence[torch.Tensor], forms: Sequence[TensorForm]) -> list[torch.Tensor]:
    """Tensors that belong to parameters of these forms. A plain one that belongs to a wrapper belongs to each part."""
    found: list[torch.Tensor] = []
    for tensor, form in zip(tensors, forms, strict=bool(tensors)):
        if is_wrapper(tensor) and form_of(tensor).layout_free_key != form.layout_free_key:
            kind = type(tensor).__name__
            raise CaptureError(f"a fused update of a {kind} whose gradient or state has other placements: take fused=False")
        found += parts_of(form, tensor) if is_wrapper(tensor) else [tensor] * form.count
    return found


@contextlib.contextmanager
def recorded_calls(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Inside, fused updates are recorded, and so are `max` and `min` in the modules of the optimizers."""
    recorded = {function.__name__: functools.partial(extremum, function) for function in (max, min)}
    with FusedUpdates(), contextlib.ExitStack() as stack:
        for names in namespaces_of(optimizers):
            stack.enter_context(mock.patch.dict(names, recorded))
        yield


def namespaces_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """The global names that methods of the optimizers see; the module of a class may be another one."""
    classes = {base for each in optimizers for base in type(each).__mro__}
    methods = (value for each in classes for value in vars(each).values() if isinstance(value, types.FunctionType))
    return list({id(method.__globals__): method.__globals__ for method in methods}.values())


def separate_fused_updates(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Let optimizers update their parameters by ops that a compiler can fuse with others, in place of one fused op.

    Not where a `GradScaler` is used: one fused op skips the update if a gradient is infinite, which costs no branch.
    """
    for group in (group for each in optimizers for group in each.param_groups):
        if group.get("fused"):
            group.update(fused=False, foreach=not isinstance(group["lr"], torch.Tensor))


def extremum(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """`max` or `min` of numbers; Python's own runs in the graph, since a trace would have to compare symbols."""
    if any(isinstance(value, torch.SymFloat) for value in args):
        return torch_compat.record_float(function, args)
    return function(*args, **kwargs)
