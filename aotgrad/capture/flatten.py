"""Pytrees in and out: nested arguments -> tensors and constants, flat results -> nested results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, taken apart.

    `tensors` are the leaves that become graph inputs; `constants` pairs the position of every other leaf with its value;
    `spec` is the structure.
    """

    tensors: list[torch.Tensor]
    constants: tuple[tuple[int, Any], ...]
    spec: pytree.TreeSpec

    @classmethod
    def of(cls, args: tuple, kwargs: dict[str, Any]) -> Arguments:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        constants = tuple((k, leaf) for k, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor))
        return cls(tensors, constants, spec)

    @property
    def key(self) -> tuple:
        """The structure and the constants, hashable; values that cannot be hashed count by identity."""
        return (self.spec_key, tuple((k, type(value), _hashable(value)) for k, value in self.constants))

    @property
    def spec_key(self) -> Any:
        return str(self.spec)

    def rebuild(self, tensors: Sequence[Any]) -> tuple[tuple, dict[str, Any]]:
        """The nested arguments, with `tensors` in place of the real ones."""
        leaves: list[Any] = [None] * (len(tensors) + len(self.constants))
        taken = {k for k, _ in self.constants}
        free = (k for k in range(len(leaves)) if k not in taken)
        for k, tensor in zip(free, tensors, strict=True):
            leaves[k] = tensor
        for k, value in self.constants:
            leaves[k] = value
        return pytree.tree_unflatten(leaves, self.spec)


class FlatOutput:
    """Calls a function that returns a pytree, flattens what it returns, and remembers the structure."""

    def __init__(self) -> None:
        self.spec: pytree.TreeSpec | None = None

    def flatten(self, result: Any) -> list[Any]:
        leaves, self.spec = pytree.tree_flatten(result)
        return leaves

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        return pytree.tree_unflatten(list(leaves), self.spec)


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return ("identity", id(value))
    return value
