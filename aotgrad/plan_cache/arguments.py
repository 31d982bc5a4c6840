"""Pytrees in and out: nested arguments -> tensors and constants, flat results -> nested results.

Numbers that a plan must not depend on become tensors: a whole number is the size of one, a float the value of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotgrad.subclasses.boundary import Wrappers


class Carried(Enum):
    """Which property of its tensor a number is."""

    SIZE = "size"
    VALUE = "value"

    def tensor(self, number: Any) -> torch.Tensor:
        if self is Carried.VALUE:
            return torch.tensor(number, dtype=torch.float64)
        return torch.empty(1, dtype=torch.bool).expand(number)

    def number(self, tensor: torch.Tensor) -> Any:
        return tensor.item() if self is Carried.VALUE else tensor.size(0)


def carried(value: Any) -> Carried | None:
    """How a tensor can represent a value; `None` if it cannot."""
    if type(value) is float:
        return Carried.VALUE
    return Carried.SIZE if type(value) is int and value >= 0 else None


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call as leaves and structure.

    Attributes:
        tensors: the leaves that become graph inputs, and the tensors that represent a number.
        constants: the position of every other leaf with its value, or `Carried`.
        spec: the structure, hashable: just the number of arguments if all of them are tensors.
        symbolic: sizes of `tensors`, by position, that a plan must not depend on.
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
        """The nested arguments with other tensors."""
        if isinstance(self.spec, int):
            return tuple(tensors), {}
        fresh, constants = iter(tensors), dict(self.constants)
        leaves = [constants[k] if k in constants else next(fresh) for k in range(self.spec.num_leaves)]
        leaves = [leaf.number(next(fresh)) if isinstance(leaf, Carried) else leaf for leaf in leaves]
        return pytree.tree_unflatten(leaves, self.spec)

    @property
    def fixed_count(self) -> int:
        """How many tensors at the end always have the same size."""
        return 0

    def with_symbols(self, sizes: Mapping[int, frozenset[int]]) -> Arguments:
        """The arguments for a plan that depends on no number among them, nor on these sizes of the tensors."""
        kinds = {position: carried(value) for position, value in self.constants}
        tensors = [kind.tensor(value) for (_, value), kind in zip(self.constants, kinds.values(), strict=True) if kind]
        constants = tuple((position, kinds[position] or value) for position, value in self.constants)
        sizes = {**sizes, **{len(self.tensors) + k: frozenset({0}) for k in range(len(tensors))}}
        return replace(self, tensors=[*self.tensors, *tensors], constants=constants, symbolic=sizes)

    @property
    def carriers(self) -> dict[int, int]:
        """The positions of the tensors that represent a number, by the position of the number among the leaves."""
        numbers = [position for position, value in self.constants if isinstance(value, Carried)]
        return dict(zip(numbers, range(len(self.tensors) - len(numbers), len(self.tensors)), strict=True))

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Arguments:
        """The same structure and constants with other tensors."""
        args, kwargs = self.rebuild(tensors)
        return replace(self, args=args, kwargs=kwargs, tensors=tensors)

    def without_tensors(self) -> Arguments:
        """The structure and constants alone, for objects that outlive the call: they must not keep its tensors alive."""
        return replace(self, args=(), kwargs={}, tensors=())


class FlatOutput:
    """Flattens the result of a function and stores its structure; `rebuild` is the inverse.

    Wrapper subclasses are taken apart, and assembled by `rebuild`.
    """

    def __init__(self, wrappers: Wrappers | None = None) -> None:
        self.spec: pytree.TreeSpec | None = None
        self.wrappers = wrappers or Wrappers()
        self.has_wrappers = False
        self.rebuild: Callable[[list[Any]], Any] = list

    def flatten(self, result: Any, arguments: Sequence[Any]) -> list[Any]:
        leaves, self.spec = pytree.tree_flatten(pytree.tree_map(name_size, result, is_leaf=is_size), is_leaf=is_size)
        flat = self.wrappers.take_apart(leaves, arguments)
        self.has_wrappers = self.wrappers.needed
        self.rebuild = self.unflatten if self.has_wrappers else unflattener(self.spec)
        return flat

    def paths(self) -> list[str]:
        """How each flat result is reached from the result: `"['loss']"`, or `"[0].a"` for a part."""
        assert self.spec is not None, "the function was traced"
        numbers = pytree.tree_unflatten(list(range(self.spec.num_leaves)), self.spec)
        leaves, _ = pytree.tree_flatten_with_path(numbers)
        names = {number: pytree.keystr(path) for path, number in leaves}
        return self.wrappers.paths([names[k] for k in range(self.spec.num_leaves)])

    def unflatten(self, flat: list[Any], objects: Sequence[torch.Tensor] = ()) -> Any:
        """The result of a call from its flat results; `objects` are the wrappers among the arguments."""
        assert self.spec is not None, "the function was traced"
        leaves = self.wrappers.assemble(flat, objects)
        return pytree.tree_unflatten(leaves, self.spec)


def unflattener(spec: pytree.TreeSpec) -> Callable[[list[Any]], Any]:
    """A function that rebuilds nested results. Lists, tuples and dicts become one expression, because pytrees are slow.

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
    """A node type that only the pytree registry knows."""


def rebuild_expression(spec: pytree.TreeSpec, positions: Iterator[int], constants: dict[str, Any]) -> str:
    """A Python expression for a nested value with leaves `leaves[0]`, `leaves[1]`, ...; keys of dicts go to `constants`."""
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
    """Turn a symbolic size into a pytree node, so that its numbers are outputs of the graph."""
    if is_size(value) and not all(type(number) is int for number in value):
        return SymbolicSize(value)
    return value
