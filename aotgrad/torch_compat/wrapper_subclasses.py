"""Subclasses of tensors that wrap other tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from aotgrad.torch_compat.functional_tensors import same_functional

_KNOWN = frozenset((torch.Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor))


def is_wrapper_subclass(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a subclass that `__tensor_flatten__` takes apart, and no tensor of a trace.

    A nested tensor is none: its parts have sizes that only tensors of the same trace share.
    """
    return is_traceable_wrapper_subclass(tensor) and not isinstance(tensor, FunctionalTensor) and not tensor.is_nested


def flattened(wrapper: Any) -> tuple[Sequence[str], Any]:
    """The names of the attributes that a wrapper consists of, and what else it needs."""
    return wrapper.__tensor_flatten__()


def another_object(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor with the same memory, unrelated for autograd; in a trace, with the same value."""
    return same_functional(tensor) if isinstance(tensor, FunctionalTensor) else tensor.detach()


def part_with_version(part: torch.Tensor, wrapper: torch.Tensor) -> torch.Tensor:
    """A tensor with the memory of a part and the version counter of its wrapper, which a change of the wrapper raises.

    An op that changes a wrapper in place leaves the version counters of its parts as they are.
    """
    if isinstance(part, FunctionalTensor) or wrapper.is_inference():
        return another_object(part)
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        alias = wrapper.detach()
        if not torch._has_compatible_shallow_copy_type(alias, part):
            return part.detach()
        alias.data = part
    return alias


def model_of_view(view: torch.Tensor) -> torch.Tensor:
    """A view made by the same ops as `view`, of a base without memory."""
    base = view._base
    with _disable_current_modes(), torch.enable_grad():
        blank = torch.empty_strided(base.size(), base.stride(), dtype=base.dtype, device="meta")
        return view._view_func_unsafe(blank)


def replayed_view(model: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The view of `base` that `model` is of its base."""
    return model._view_func_unsafe(base)


def dispatches_itself(classes: Iterable[type]) -> bool:
    """Whether one of the classes of an op's arguments has a `__torch_dispatch__` of its own, which comes first."""
    return not _KNOWN.issuperset(classes)
