"""Views: how a function asks where a tensor comes from, what autograd notes of a view, and which ops make one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from aotgrad.torch_compat.autograd import was_hooked
from aotgrad.torch_compat.functional_tensors import recorded_views

HISTORY_GETTERS: dict[Callable, str] = {
    torch.Tensor._version.__get__: "._version",
    torch.Tensor._base.__get__: "._base",
    torch.Tensor._is_view: "._is_view()",
}
"""How a function asks a tensor where it comes from, and what it wrote to do so."""

INHERITED_GETTERS = (torch.Tensor.storage_offset, torch.Tensor._version.__get__, torch.Tensor._base.__get__)
"""Those that a view answers from what it is a view of."""


def made_under_no_grad(view: torch.Tensor) -> bool:
    """Whether autograd notes of a view that it was made with grad mode off."""
    return torch._C._autograd._get_creation_meta(view) == torch._C._autograd.CreationMeta.NO_GRAD_MODE


def is_forbidden_after_a_write(tensor: torch.Tensor) -> bool:
    """Whether autograd lets nobody use a view once its base is changed: one made under `no_grad`, or with other views."""
    meta = torch._C._autograd.CreationMeta
    if not is_differentiable_view(tensor):
        return False
    return torch._C._autograd._get_creation_meta(tensor) in (meta.NO_GRAD_MODE, meta.MULTI_OUTPUT_NODE)


def has_usable_history(tensor: torch.Tensor) -> bool:
    """Whether autograd tells the history of a tensor: not of a view made under `no_grad`, or with others, once changed."""
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
    """Whether a view that requires grad has, or had, a hook: one that a write to it leaves at the old history."""
    return is_differentiable_view(tensor) and was_hooked(tensor)


def is_view_of_leaf(tensor: torch.Tensor) -> bool:
    """Whether autograd refuses in-place ops on a tensor because it is a view of a leaf that requires grad."""
    return is_differentiable_view(tensor) and tensor._base.requires_grad and tensor._base.is_leaf


def is_converted_view(tensor: torch.Tensor) -> bool:
    """Whether a view has another dtype than its base, or is its conjugate: autograd makes its history anew by these views.

    And so without a change of its size or stride (`t_`, ...) since, where it goes by size and stride otherwise.
    """
    if not is_differentiable_view(tensor):
        return False
    return kind_of_value(tensor) != kind_of_value(tensor._base)


def kind_of_value(tensor: torch.Tensor) -> tuple[torch.dtype, bool, bool]:
    """What the memory of a tensor stands for."""
    return tensor.dtype, tensor.is_conj(), tensor.is_neg()


def is_stale_view(tensor: torch.Tensor) -> bool:
    """Whether a view is older than the last change of its base's size or stride (`t_`, `unsqueeze_`, ...).

    Autograd then replays it on the new geometry, and in eager on the old one.
    """
    if not is_differentiable_view(tensor):
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
