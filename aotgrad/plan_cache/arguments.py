"""Pytrees in and out: nested arguments -> tensors and constants, flat results -> nested results.

Numbers that a plan must not depend on go in as tensors: a whole number as the size of one, a float as the value of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch
import torch.utils._pytree as pytree


class Carried(Enum):
    """What a number is of the tensor that stands for it."""

    SIZE = "size"
    VALUE = "value"

    def tensor(self, number: Any) -> torch.Tensor:
        if self is Carried.VALUE:
            return torch.tensor(number, dtype=torch.float64)
        return torch.empty(1, dtype=torch.bool).expand(number)

    def number(self, tensor: torch.Tensor) -> Any:
        return tensor.item() if self is Carried.VALUE else tensor.size(0)


def carried(value: Any) -> Carried | None:
    """How a tensor can stand for a value, if it can."""
    if type(value) is float:
        return Carried.VALUE
    return Carried.SIZE if type(value) is int and value >= 0 else None


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, taken apart.

    `tensors` are the leaves that become graph inputs, and those that stand for a number; `constants` pairs the position of
    every other leaf with its value, or `Carried`; `spec` is the structure, hashable: just the number of arguments if all of
    them are tensors. `symbolic` are sizes of `tensors`, by position, that a plan must not depend on.
    """

    args: tuple
    kwargs: dict[str, Any]
    tensors: Sequence[torch.Tensor]
    constants: tuple[tuple[int, Any], ...]
    spec: Any
    symbolic: Mapping[int, frozenset[int]] = field(default_factory=dict, kw_only=True)

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
        leaves = [leaf.number(next(fresh)) if isinstance(leaf, Carried) else leaf for leaf in leaves]
        return pytree.tree_unflatten(leaves, self.spec)

    @property
    def fixed_count(self) -> int:
        """How many tensors, the last ones, always have the same size."""
        return 0

    def with_symbols(self, sizes: Mapping[int, frozenset[int]]) -> Arguments:
        """The same for a plan that depends on no number among them, and not on these sizes of the tensors."""
        kinds = {position: carried(value) for position, value in self.constants}
        tensors = [kind.tensor(value) for (_, value), kind in zip(self.constants, kinds.values(), strict=True) if kind]
        constants = tuple((position, kinds[position] or value) for position, value in self.constants)
        sizes = {**sizes, **{len(self.tensors) + k: frozenset({0}) for k in range(len(tensors))}}
        return replace(self, tensors=[*self.tensors, *tensors], constants=constants, symbolic=sizes)

    def without_tensors(self) -> Arguments:
        """The structure and constants alone: for what outlives the call, whose tensors it must not keep alive."""
        return replace(self, args=(), kwargs={}, tensors=())


class FlatOutput:
    """Flattens what a function returns, and remembers the structure: `rebuild` puts it together again."""

    def __init__(self) -> None:
        self.spec: pytree.TreeSpec | None = None
        self.rebuild: Callable[[list[Any]], Any] = list

    def flatten(self, result: Any) -> list[Any]:
        leaves, self.spec = pytree.tree_flatten(pytree.tree_map(name_size, result, is_leaf=is_size), is_leaf=is_size)
        self.rebuild = unflattener(self.spec)
        return leaves

    def unflatten(self, leaves: list[Any]) -> Any:
        return self.rebuild(leaves)


def unflattener(spec: pytree.TreeSpec) -> Callable[[list[Any]], Any]:
    """What puts flat results together again. Nested lists, tuples and dicts are one expression, since pytrees are slow.

    >>> unflattener(pytree.tree_structure((0, [1, 2], {"a": 3})))([4, 5, 6, 7])
    (4, [5, 6], {'a': 7})
    """
    constants: dict[str, Any] = {}
    positions = itertools.count()
    try:
        return eval(f"lambda leaves: {rebuild_expression(spec, positions, constants)}", constants)
    except UnknownNode:
        return lambda leaves: pytree.tree_unflatten(leaves, spec)


class UnknownNode(Exception):
    """A structure that only pytrees know."""


def rebuild_expression(spec: pytree.TreeSpec, positions: Iterator[int], constants: dict[str, Any]) -> str:
    """Python text of a nested value whose leaves are `leaves[0]`, `leaves[1]`, ...; keys of dicts go to `constants`."""
    if spec.is_leaf():
        return f"leaves[{next(positions)}]"
    if spec.type not in (tuple, list, dict):
        raise UnknownNode
    keys = [key_name(key, constants) for key in spec.context] if spec.type is dict else []
    parts = [rebuild_expression(child, positions, constants) for child in spec.children()]
    if spec.type is dict:
        return f"{{{', '.join(f'{key}: {part}' for key, part in zip(keys, parts, strict=True))}}}"
    return f"({''.join(f'{part}, ' for part in parts)})" if spec.type is tuple else f"[{', '.join(parts)}]"


def key_name(key: Any, constants: dict[str, Any]) -> str:
    name = f"key_{len(constants)}"
    constants[name] = key
    return name


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
