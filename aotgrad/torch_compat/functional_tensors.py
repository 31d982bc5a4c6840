"""Functional tensors: the wrappers of a trace, and the fakes behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.utils._python_dispatch import _detect_infra_mode

from aotgrad.torch_compat.memory import storage_id

USED_OUTSIDE = "Attempting to use FunctionalTensor on its own"
"""Part of torch's message when an op gets a functional tensor outside of its trace."""


def inner_values(values: Any) -> Any:
    """Arguments with functional tensors replaced by the fakes behind them, without pending writes."""
    return pytree.tree_map_only(FunctionalTensor, lambda tensor: torch._from_functional_tensor(tensor.elem), values)


def wrapped_result(mode: FunctionalTensorMode, fake: torch.Tensor) -> torch.Tensor:
    """A functional wrapper of a new value, below autograd."""
    return FunctionalTensor(torch._to_functional_tensor(fake), mode)


def wrapped_results(mode: FunctionalTensorMode, results: list[Any] | tuple[Any, ...]) -> list[Any] | tuple[Any, ...]:
    """Several results of an op. One that a kernel returns twice has one wrapper, so that autograd copies it as in eager."""
    wrappers = {id(each): wrapped_result(mode, each) for each in results if isinstance(each, FakeTensor)}
    return type(results)(wrappers.get(id(each), each) for each in results)


def to_functional(fake: torch.Tensor) -> torch.Tensor:
    """A functional wrapper of a tracked fake tensor; the functional mode must be active."""
    return FunctionalTensor.to_functional(fake)


def same_functional(tensor: torch.Tensor) -> torch.Tensor:
    """Another functional wrapper of the same value: a write to one reaches both; for autograd they are unrelated."""
    mode = _detect_infra_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL)
    return FunctionalTensor(tensor.elem, mode)


def detached_functional(tensor: torch.Tensor) -> torch.Tensor:
    """Another functional wrapper of the same memory; for autograd, another tensor with the same storage."""
    other = same_functional(tensor)
    torch._functionalize_unsafe_set(other, tensor)
    return other


def traced_memory_id(tensor: torch.Tensor) -> int:
    """Equal for two live tensors if and only if they share memory; see `same_functional`, which has another storage."""
    return storage_id(tensor.elem if isinstance(tensor, FunctionalTensor) else tensor)


def from_functional(tensor: torch.Tensor) -> torch.Tensor:
    """The fake behind a functional tensor, after pending writes."""
    torch._sync(tensor)
    return tensor.from_functional()


def replace_value(tensor: torch.Tensor, fake: torch.Tensor) -> None:
    """Replace the value of a functional tensor, also for the tensors that share its memory."""
    torch._functionalize_replace(tensor.elem, fake)
    torch._functionalize_commit_update(tensor.elem)
    torch._sync(tensor)


def view_root(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor itself or its base, whichever is no view for functionalization; `None` if both are."""
    candidates = (tensor, tensor._base)
    return next((each for each in candidates if isinstance(each, FunctionalTensor) and not recorded_views(each)), None)


def with_recorded_views(tensor: torch.Tensor, base: torch.Tensor, skipped: int = 0) -> torch.Tensor:
    """`base`, viewed as `tensor` views the base of its storage, without the first `skipped` views."""
    from torch._C import _functionalization

    return _functionalization.apply_view_meta_sequence(base, recorded_views(tensor)[skipped:])


def recorded_views(tensor: torch.Tensor) -> list[Any]:
    """The views from the base of a functional tensor's storage to it; tensors that share a view share the object."""
    from torch._C import _functionalization

    return _functionalization.get_view_meta_sequence(tensor.elem)


def is_traced(value: Any) -> bool:
    """Whether a value belongs to a trace."""
    return isinstance(value, (FunctionalTensor, FakeTensor))


def is_functional(value: Any) -> bool:
    """Whether a value is a tensor of a trace as the traced function sees it."""
    return isinstance(value, FunctionalTensor)


def is_functionalized(value: Any) -> bool:
    """Whether a value is a tensor of `torch.func.functionalize`, which has no memory of its own."""
    return isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)


def assigned_attributes(tensor: torch.Tensor) -> set[str]:
    """The names of the public attributes that a function has assigned to a traced tensor. Torch assigns private ones."""
    return {name for name in vars(tensor) if not name.startswith("_")} - {"elem"}


def any_functional(tensors: Sequence[Any]) -> bool:
    """Whether one of these is a tensor of a running trace."""
    return FunctionalTensor in map(type, tensors)
