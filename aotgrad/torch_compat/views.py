"""Views: how a function asks for a tensor's history, what autograd records about a view, and which ops return one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from aotgrad.torch_compat.autograd import was_hooked
from aotgrad.torch_compat.functional_tensors import recorded_views

HISTORY_GETTERS: dict[Callable, str] = {
    torch.Tensor._version.__get__: "._version",
    torch.Tensor._base.__get__: "._base",
    torch.Tensor._is_view: "._is_view()",
}
"""The getters of a tensor's history, and how the user writes them."""

INHERITED_GETTERS = (torch.Tensor.storage_offset, torch.Tensor._version.__get__, torch.Tensor._base.__get__)
"""Getters that a view answers from its base."""


def made_under_no_grad(view: torch.Tensor) -> bool:
    """Whether autograd has recorded that a view was created with grad mode off."""
    return torch._C._autograd._get_creation_meta(view) == torch._C._autograd.CreationMeta.NO_GRAD_MODE


def is_made_by_function(view: torch.Tensor) -> bool:
    """Whether a view that requires grad is a result of an autograd function, which has a history of its own."""
    meta = torch._C._autograd.CreationMeta
    return is_differentiable_view(view) and torch._C._autograd._get_creation_meta(view) == meta.IN_CUSTOM_FUNCTION


def is_forbidden_after_a_write(tensor: torch.Tensor) -> bool:
    """Whether autograd forbids a view once its base is changed: it was created under `no_grad`, or with other views."""
    meta = torch._C._autograd.CreationMeta
    if not is_differentiable_view(tensor):
        return False
    return torch._C._autograd._get_creation_meta(tensor) in (meta.NO_GRAD_MODE, meta.MULTI_OUTPUT_NODE)


def has_usable_history(tensor: torch.Tensor) -> bool:
    """Whether a history can be read: not of a stale view, nor of a changed one that `is_forbidden_after_a_write`."""
    if is_stale_view(tensor):
        return False
    if not is_forbidden_after_a_write(tensor):
        return True
    try:
        _ = tensor.grad_fn
    except RuntimeError:
        return False
    return True


def is_differentiable_view(tensor: torch.Tensor) -> bool:
    """Whether a tensor that requires grad is a view."""
    return tensor.requires_grad and tensor._base is not None


def is_hooked_view(tensor: torch.Tensor) -> bool:
    """Whether a view that requires grad has, or had, a hook; a write to the view leaves hooks at the old history."""
    return is_differentiable_view(tensor) and was_hooked(tensor)


def is_view_of_leaf(tensor: torch.Tensor) -> bool:
    """Whether autograd refuses in-place ops on a tensor because it is a view of a leaf that requires grad."""
    return is_differentiable_view(tensor) and tensor._base.requires_grad and tensor._base.is_leaf


def is_converted_view(tensor: torch.Tensor) -> bool:
    """Whether a view has another dtype than its base, or is its conjugate.

    Autograd regenerates the history of such a view by replaying its views, which misses in-place changes of its size or
    stride (`t_`, ...). For other views it goes by size and stride.
    """
    if not is_differentiable_view(tensor):
        return False
    return kind_of_value(tensor) != kind_of_value(tensor._base)


def kind_of_value(tensor: torch.Tensor) -> tuple[torch.dtype, bool, bool]:
    """How a tensor interprets its memory."""
    return tensor.dtype, tensor.is_conj(), tensor.is_neg()


def is_stale_view(tensor: torch.Tensor) -> bool:
    """Whether a view is older than the last in-place change of its base's size or stride (`t_`, `unsqueeze_`, ...).

    In a trace, autograd then replays it on the new geometry; in eager, on the old one.
    """
    if not is_differentiable_view(tensor):
        return False
    if not isinstance(tensor._base, FunctionalTensor):  # a wrapper subclass
        return False
    changes, own = recorded_views(tensor._base), recorded_views(tensor)
    return len(own) < len(changes) or any(change is not view for change, view in zip(changes, own, strict=False))


@functools.lru_cache(maxsize=4096)
def is_view_by_schema(target: Any) -> bool:
    """Whether an op's schema says that it returns an alias of its first argument and writes nothing.

    Functionalization goes by this. See `op_table.is_view` for what the memory says.
    """
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.arguments:
        return False
    first = target._schema.arguments[0].alias_info
    returned = [result.alias_info for result in target._schema.returns]
    return first is not None and not first.is_write and any(info is not None for info in returned)
