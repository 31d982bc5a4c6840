"""When a compiled plan may be reused: everything that its trace depended on.

A plan holds for a call with the same structure and Python values (the key of its cache entry, `structure_key`), for which

    global state    grad mode, inference mode, autocast, default dtype, determinism
    tensors         type, dtype, device, layout, requires_grad, conj and neg bits, static sizes and strides, number
    identity        which arguments are the same tensor; how they share memory with a mutated one
    leaves          whether a mutated input that requires grad is a leaf
    offsets         storage offsets, if a view is replayed by its absolute geometry
    shapes          the symbolic guards of the trace

are as they were. The check of all tensors is one C++ call.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.convention import Dedupe, MemorySharing


@dataclass(frozen=True)
class PlanGuards:
    """The conditions of one plan. Positions are those of the distinct tensors."""

    dedupe: Dedupe
    global_state: Any
    inference_mode: bool
    tensors: torch_compat.TensorGuard
    leaves: tuple[tuple[int, bool], ...]
    sharing: MemorySharing | None
    offsets: tuple[tuple[int, int], ...]
    shapes: Callable[[Sequence[Any]], bool] | None

    def check(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the plan is right for these arguments, now."""
        if not self.dedupe.is_identity:
            if not self.dedupe.matches(tensors):
                return False
            tensors = self.dedupe.enter(tensors)
        return (
            self.tensors(*tensors)
            and self.global_state.check()
            and torch.is_inference_mode_enabled() == self.inference_mode
            and all(tensors[k].is_leaf == is_leaf for k, is_leaf in self.leaves)
            and (self.sharing is None or self.sharing.matches(tensors))
            and all(tensors[k].storage_offset() == offset for k, offset in self.offsets)
            and (self.shapes is None or self.shapes(tensors))
        )

    def why_not(self, tensors: Sequence[torch.Tensor]) -> str:
        """What differs, for the log; the empty string if nothing does."""
        if not self.dedupe.matches(tensors):
            return "other arguments are the same tensor"
        distinct = self.dedupe.enter(tensors)
        if reason := self.tensors.failure(distinct):
            return reason
        if not self.global_state.check():
            return f"global state: {self.global_state.reason()}"
        if torch.is_inference_mode_enabled() != self.inference_mode:
            return "inference mode"
        if any(distinct[k].is_leaf != is_leaf for k, is_leaf in self.leaves):
            return "a mutated input is a leaf in one call and not in the other"
        if self.sharing is not None and not self.sharing.matches(distinct):
            return "other arguments share memory or a version counter with a mutated one"
        if any(distinct[k].storage_offset() != offset for k, offset in self.offsets):
            return "storage offset"
        return "" if self.check(tensors) else "symbolic shape guards"


def structure_key(constants: Sequence[tuple[int, Any]], spec: Any, extra: Any) -> tuple:
    """The Python side of a call, hashable; `1`, `1.0` and `True` differ."""
    return (spec, tuple((position, type(value), hashable(value)) for position, value in constants), extra)


def hashable(value: Any) -> Any:
    """What an argument counts as: itself if it can be hashed by value, else its pickled content.

    A value that can be neither hashed nor pickled equals nothing, itself at the next call included: it may have changed.
    """
    if isinstance(value, float):
        return value.hex()
    if callable(value) or (type(value).__hash__ not in (None, object.__hash__) and is_hashable(value)):
        return value
    try:
        return pickle.dumps(value)
    except Exception:  # whatever an object's own __reduce__ raises
        return object()


def is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
