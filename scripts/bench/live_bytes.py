"""The memory of what ops make in eager: its peak, and the least that the same ops need in any order."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """The memory of storages that ops made: now, at most, and at most of those that one op reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.largest = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor) and not func.is_view and not func._schema.is_mutable:
                self.watch(value.untyped_storage())
        touched = [value for value in pytree.tree_leaves((args, kwargs, result)) if isinstance(value, torch.Tensor)]
        storages = {value.untyped_storage()._cdata: value.untyped_storage().nbytes() for value in touched}
        self.largest = max(self.largest, sum(size for key, size in storages.items() if key in self.known))
        return result

    def watch(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self.known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.freed, key, size)

    def freed(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def least_peak(step: Callable[[], object]) -> int:
    """The bytes that an eager step needs in any order of its ops: those of its largest op, or what is left at its end."""
    with LiveBytes() as memory:
        kept = step()
        left = memory.live
    del kept
    return max(memory.largest, left)
