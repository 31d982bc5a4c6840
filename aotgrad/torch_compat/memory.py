"""Storages, version counters and layouts."""

from __future__ import annotations

import ctypes
import operator
import sys
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from aotgrad.torch_compat.contexts import normal_mode
from aotgrad.torch_compat.shapes import hints


def storage_id(tensor: torch.Tensor) -> int:
    """Equal for two live tensors if and only if they share storage."""
    return tensor.untyped_storage()._cdata


def attach_to_storage(tensor: torch.Tensor, value: Any) -> None:
    """Let the storage of a tensor hold an object, which every alias of the tensor finds there."""
    tensor.untyped_storage()._aotgrad_attached = value  # pyright: ignore[reportAttributeAccessIssue]


def attached_to_storage(tensor: torch.Tensor) -> Any:
    """The object that the storage of a tensor holds; `None` if it holds none."""
    return getattr(tensor.untyped_storage(), "_aotgrad_attached", None)


def owners_of(tensor: torch.Tensor) -> int:
    """How many own a tensor: Python, if it has references to it, and each node or list in C++."""
    return tensor._use_count()


def sharers_of_memory(tensor: torch.Tensor) -> int:
    """How many tensors have the memory of a tensor, and how many references to its storage a program has."""
    return torch._C._storage_Use_Count(storage_id(tensor)) - 1 + _references_to_storage(tensor) - _REFERENCES_OF_NONE


def _references_to_storage(tensor: torch.Tensor) -> int:
    storage = tensor.untyped_storage()
    return sys.getrefcount(storage)


_REFERENCES_OF_NONE = _references_to_storage(torch.empty(0))
"""What is counted if a program has no reference to a storage. It depends on the version of Python."""


def has_no_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor represents zeros without memory, as an undefined tangent of forward mode does."""
    return tensor._is_zerotensor()


def sharing_version(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`tensor` with the version counter of `other` if they share memory, so that a write to one shows at the other."""
    if tensor is other or storage_key(tensor) != storage_key(other):
        return tensor
    alias = other.detach()
    alias.data = tensor  # gets all but the version counter
    return alias


def strided_alias(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: Any) -> torch.Tensor:
    """A detached view of the storage of a tensor, with the same version counter."""
    version = version_of(tensor)
    alias = tensor.detach().as_strided_(size, stride, offset)
    raise_version(tensor, version, 0)
    return alias


def version_of(tensor: torch.Tensor) -> int | None:
    """The version counter, or `None` for inference tensors, which have none."""
    return None if tensor.is_inference() else tensor._version


def versions_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The version counters of tensors, none of them an inference tensor."""
    return list(map(_version_getter, tensors))


_version_getter = torch.Tensor._version.__get__


def raise_version(tensor: torch.Tensor, version: int | None, bumps: int) -> None:
    """Set the version counter to `version + bumps`, as if that many in-place ops had run since.

    A result that a plan makes in inference mode has none, although the plan knows its version.
    """
    if version is not None and not tensor.is_inference():
        torch._C._autograd._unsafe_set_version_counter((tensor,), (version + bumps,))


def versions_at_entry(tensors: Sequence[torch.Tensor]) -> Sequence[int | None]:
    """`version_of` each tensor."""
    return list(map(version_of, tensors)) if any(map(_is_inference, tensors)) else versions_of(tensors)


def raise_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int | None], bumps: Sequence[int]) -> None:
    """`raise_version` of each tensor."""
    if None in versions or any(map(_is_inference, tensors)):
        for each in zip(tensors, versions, bumps, strict=True):
            raise_version(*each)
    else:
        torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(map(operator.add, versions, bumps)))


_is_inference = torch.Tensor.is_inference


def share_version(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share a version counter; bumps it for a moment to find out."""
    version, before = one._version, other._version
    raise_version(one, version, 1)
    shared = other._version != before
    raise_version(one, version, 0)
    return shared


def flat_alias(tensor: torch.Tensor, start: Any, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    """`nbytes` of the storage of a tensor from byte `start` on, as a flat tensor unknown to autograd."""
    storage = tensor.untyped_storage()[start : start + nbytes]
    with normal_mode():
        return torch.empty(0, dtype=dtype, device=tensor.device).set_(storage)


def has_storage(value: Any) -> bool:
    """Whether a value is a strided tensor."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether a stride of 0 puts several elements in the same memory."""
    steps, sizes = strides(tensor), tensor.size()
    return 0 in steps and 0 not in sizes and any(step == 0 and size > 1 for size, step in zip(sizes, steps, strict=True))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements have no gaps or overlaps, in any order of the dimensions."""
    return tensor.layout is torch.strided and is_dense_layout(tensor.size(), tensor.stride())


def is_dense_layout(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def byte_range(dense: torch.Tensor) -> tuple[int, int]:
    start: Any = dense.storage_offset() * dense.element_size()
    return start, start + dense.numel() * dense.element_size()


def contiguous_in_order(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A copy with the dense strides `stride`."""
    order = sorted(range(tensor.dim()), key=lambda dim: -hints(stride)[dim])
    back = sorted(range(tensor.dim()), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)


def storage_key(tensor: torch.Tensor) -> int:
    """`storage_id`, or the identity of a tensor that has no single storage."""
    return storage_id(tensor) if tensor.layout is torch.strided else -id(tensor)


def strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The strides of a strided tensor; `()` for other layouts."""
    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()


def storage_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def bytes_of(dense: torch.Tensor) -> bytes:
    """The memory of a dense tensor."""
    there = dense.cpu()
    return ctypes.string_at(there.data_ptr(), there.nbytes)


def tensor_of_bytes(data: bytes, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A tensor with this memory."""
    if not data:
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(data), dtype=dtype).as_strided(size, stride)


def memory_reference(tensor: torch.Tensor) -> StorageWeakRef:
    """A weak reference to the storage of a tensor. Its `cdata` is the `storage_id`; no other storage gets this meanwhile."""
    return StorageWeakRef(tensor.untyped_storage())


def content_checksum(memory: StorageWeakRef, start: int, end: int) -> int | None:
    """A content_checksum of some bytes of a storage; `None` if the storage is gone, or ends earlier."""
    storage = torch.UntypedStorage._new_with_weak_ptr(memory.cdata)
    if storage is None or storage.nbytes() < end:
        return None
    there = storage if storage.device.type == "cpu" else storage.cpu()
    return zlib.crc32((ctypes.c_char * (end - start)).from_address(there.data_ptr() + start))
