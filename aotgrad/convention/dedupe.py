"""Duplicate inputs: the same tensor passed twice becomes one input of the graph.

f(x, y, x)   ->   graph inputs (x, y), positions (0, 1, 0)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Dedupe:
    """`positions[k]` is the position of argument k among the distinct ones; `kept` has the first argument of each.

    >>> Dedupe((0, 1), (0, 1, 0)).exit(["x", "y"])
    ['x', 'y', 'x']
    """

    kept: tuple[int, ...]
    positions: tuple[int, ...]

    @classmethod
    def of(cls, args: Sequence[Any]) -> Dedupe:
        """Merge tensors that are the same object."""
        first: dict[int, int] = {}
        kept: list[int] = []
        positions: list[int] = []
        for index, arg in enumerate(args):
            key = id(arg) if isinstance(arg, torch.Tensor) else -1 - index
            if key not in first:
                first[key] = len(kept)
                kept.append(index)
            positions.append(first[key])
        return cls(tuple(kept), tuple(positions))

    @functools.cached_property
    def is_identity(self) -> bool:
        return len(self.kept) == len(self.positions)

    def matches(self, args: Sequence[Any]) -> bool:
        """Whether the same arguments are duplicates, and no others."""
        return len(args) == len(self.positions) and Dedupe.of(args) == self

    def merges(self, args: Sequence[Any]) -> bool:
        """Whether the arguments that were one object still are."""
        return self.is_identity or all(args[k] is args[self.kept[position]] for k, position in enumerate(self.positions))

    def enter(self, args: Sequence[Any]) -> list[Any]:
        """The distinct arguments."""
        return [args[index] for index in self.kept]

    def exit(self, distinct: Sequence[Any]) -> list[Any]:
        """The arguments as the user's function takes them."""
        return [distinct[position] for position in self.positions]
