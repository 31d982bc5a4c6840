"""Pytrees in and out: nested arguments -> tensors and constants, flat results -> nested results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, taken apart.

    `tensors` are the leaves that become graph inputs; `constants` pairs the position of every other leaf with its value;
    `spec` is the structure, hashable: just the number of arguments if all of them are tensors.
    """

    args: tuple
    kwargs: dict[str, Any]
    tensors: Sequence[torch.Tensor]
    constants: tuple[tuple[int, Any], ...]
    spec: Any

    @classmethod
    def of(cls, args: tuple, kwargs: dict[str, Any]) -> Arguments:
        if not kwargs and all(isinstance(arg, torch.Tensor) for arg in args):
            return cls(args, kwargs, args, (), len(args))
        leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=is_size)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        constants = tuple((k, leaf) for k, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor))
        return cls(args, kwargs, tensors, constants, spec)

    def rebuild(self, tensors: Sequence[Any]) -> tuple[tuple, dict[str, Any]]:
        """The nested arguments, with `tensors` in place of the real ones."""
        if isinstance(self.spec, int):
            return tuple(tensors), {}
        fresh, constants = iter(tensors), dict(self.constants)
        leaves = [constants[k] if k in constants else next(fresh) for k in range(self.spec.num_leaves)]
        return pytree.tree_unflatten(leaves, self.spec)

    def without_tensors(self) -> Arguments:
        """The structure and constants alone: for what outlives the call, whose tensors it must not keep alive."""
        return replace(self, args=(), kwargs={}, tensors=())


class FlatOutput:
    """Calls a function that returns a pytree, flattens what it returns, and remembers the structure."""

    def __init__(self) -> None:
        self.spec: pytree.TreeSpec | None = None
        self.is_one = self.is_list = False

    def flatten(self, result: Any) -> list[Any]:
        leaves, self.spec = pytree.tree_flatten(pytree.tree_map(name_size, result, is_leaf=is_size), is_leaf=is_size)
        self.is_one = self.spec.is_leaf()
        self.is_list = self.spec.type is list and all(child.is_leaf() for child in self.spec.children())
        return leaves

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The nested results; the two common structures are put together here, since pytrees are slow."""
        if self.is_one:
            return leaves[0]
        if self.is_list:
            return list(leaves)
        return pytree.tree_unflatten(list(leaves), self.spec)


class SymbolicSize(tuple):
    """A `torch.Size` with symbolic numbers in it, as a pytree node; a plain `torch.Size` is a constant."""


pytree.register_pytree_node(
    SymbolicSize,
    lambda size: (list(size), None),
    lambda numbers, _: torch.Size(numbers),
    serialized_type_name="aotgrad.SymbolicSize",
)


def is_size(value: Any) -> bool:
    return type(value) is torch.Size


def name_size(value: Any) -> Any:
    """Symbolic sizes become nodes of their own, so that their numbers are outputs of the graph."""
    if is_size(value) and not all(type(number) is int for number in value):
        return SymbolicSize(value)
    return value
