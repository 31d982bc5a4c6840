"""When a compiled plan may be reused: everything that its trace depended on, as one hashable key.

The key holds the metadata of the tensor arguments, the Python values among them, which arguments are the same tensor or
share storage, and torch's global state. With symbolic sizes the key leaves them out, and the trace's own shape guards are
evaluated in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aotgrad import torch_compat


def plan_key(tensors: Sequence[torch.Tensor], constants: Any, dynamic: bool) -> tuple:
    """Equal keys: a plan made for one call is right for the other, but for shape guards if `dynamic`."""
    metadata = tuple(tensor_key(tensor, dynamic) for tensor in tensors)
    return (metadata, sharing_pattern(tensors), constants, global_state())


def tensor_key(tensor: torch.Tensor, dynamic: bool) -> tuple:
    if tensor.layout is not torch.strided:
        geometry: Any = (tuple(tensor.shape), str(tensor.layout))
    elif dynamic:
        geometry = (tensor.dim(), tensor.is_contiguous())
    else:
        geometry = (tensor.shape, tensor.stride(), tensor.storage_offset())
    flags = (tensor.requires_grad, tensor.is_leaf, tensor.is_conj(), tensor.is_neg(), tensor.is_inference())
    return (type(tensor), tensor.dtype, tensor.device, geometry, flags)


def sharing_pattern(tensors: Sequence[torch.Tensor]) -> tuple:
    """For each tensor, the first position of the same object and of the same storage.

    Overlap is judged by storage: finer than that, a plan is compiled once more than needed, never reused wrongly.
    """
    objects: dict[int, int] = {}
    storages: dict[Any, int] = {}
    pattern = []
    for index, tensor in enumerate(tensors):
        storage = torch_compat.storage_id(tensor) if tensor.layout is torch.strided else ("object", id(tensor))
        pattern.append((objects.setdefault(id(tensor), index), storages.setdefault(storage, index)))
    return tuple(pattern)


def global_state() -> tuple:
    """What of torch's global state changes a trace."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch_compat.autocast_state(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
    )
