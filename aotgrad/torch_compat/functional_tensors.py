"""Functional tensors: the wrappers that a trace is made with, and the fakes behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.utils._python_dispatch import _detect_infra_mode


def inner_values(values: Any) -> Any:
    """Arguments with the fakes behind functional tensors, which no pending write reaches."""
    return pytree.tree_map_only(FunctionalTensor, lambda tensor: torch._from_functional_tensor(tensor.elem), values)


def wrapped_result(mode: FunctionalTensorMode, fake: torch.Tensor) -> torch.Tensor:
    """A functional wrapper around a new value, below autograd."""
    return FunctionalTensor(torch._to_functional_tensor(fake), mode)


def to_functional(fake: torch.Tensor) -> torch.Tensor:
    """A functional wrapper around a tracked fake tensor; needs the functional mode to be active."""
    return FunctionalTensor.to_functional(fake)


def same_functional(tensor: torch.Tensor) -> torch.Tensor:
    """Another functional wrapper of the same value: a write to one is a write to both; to autograd they are unrelated."""
    mode = _detect_infra_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL)
    return FunctionalTensor(tensor.elem, mode)


def detached_functional(tensor: torch.Tensor) -> torch.Tensor:
    """Another functional wrapper of the same memory, which autograd takes for another tensor of the same storage."""
    other = same_functional(tensor)
    torch._functionalize_unsafe_set(other, tensor)
    return other


def from_functional(tensor: torch.Tensor) -> torch.Tensor:
    """The fake tensor that holds the current value of a functional one, after pending mutations."""
    torch._sync(tensor)
    return tensor.from_functional()


def replace_value(tensor: torch.Tensor, fake: torch.Tensor) -> None:
    """Let the whole memory of a functional tensor, which is no view, hold another value, also for its views."""
    torch._functionalize_replace(tensor.elem, fake)
    torch._functionalize_commit_update(tensor.elem)
    torch._sync(tensor)


def whole(tensor: torch.Tensor) -> torch.Tensor | None:
    """A functional tensor of which `tensor` is a view, itself none to functionalization; `None` if it is not known."""
    candidates = (tensor, tensor._base)
    return next((each for each in candidates if each is not None and not recorded_views(each)), None)


def with_recorded_views(tensor: torch.Tensor, base: torch.Tensor, skipped: int = 0) -> torch.Tensor:
    """`base`, viewed as the functional tensor `tensor` views the base of its storage, but for the first `skipped` views."""
    from torch._C import _functionalization

    return _functionalization.apply_view_meta_sequence(base, recorded_views(tensor)[skipped:])


def recorded_views(tensor: torch.Tensor) -> list[Any]:
    """The views that lead from the base of a functional tensor's storage to it; each is the same object in all of them."""
    from torch._C import _functionalization

    return _functionalization.get_view_meta_sequence(tensor.elem)


def is_traced(value: Any) -> bool:
    """Whether a value belongs to a trace."""
    return isinstance(value, (FunctionalTensor, FakeTensor))


def is_functional(value: Any) -> bool:
    """Whether a value is a tensor of a trace, as the function sees it."""
    return isinstance(value, FunctionalTensor)


def any_functional(tensors: Sequence[Any]) -> bool:
    """Whether a trace of ours is running and these are its tensors."""
    return FunctionalTensor in map(type, tensors)
