"""The numbers that a step takes as inputs: an optimizer's hyperparameters, so that a schedule makes no new plan.

numbers = Numbers.of([optimizer])
numbers.pack()                          f64[4]: lr, beta1, beta2, weight_decay
numbers.put(symbols)                    the optimizer computes with symbols
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree


@dataclass(frozen=True)
class Numbers:
    """The entries of dictionaries that hold floats, nested ones included, in the order of their names."""

    entries: tuple[tuple[dict[str, Any], str], ...]

    @classmethod
    def of(cls, optimizers: Iterable[torch.optim.Optimizer]) -> Numbers:
        tables = [table for each in optimizers for table in (*each.param_groups, *each.state.values())]
        return cls(tuple((table, key) for table in tables for key, value in by_name(table) if has_float(value)))

    @property
    def values(self) -> list[float]:
        """The floats, in order."""
        leaves = pytree.tree_leaves([table[key] for table, key in self.entries])
        return [leaf for leaf in leaves if type(leaf) is float]

    def pack(self) -> torch.Tensor:
        """The floats as one tensor of double precision, which has Python's."""
        return torch.tensor(self.values, dtype=torch.float64)

    def put(self, numbers: Sequence[Any]) -> None:
        """Let the entries hold other numbers."""
        rest = iter(numbers)
        for table, key in self.entries:
            table[key] = pytree.tree_map(lambda leaf: next(rest) if type(leaf) is float else leaf, table[key])


def by_name(table: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """The entries in an order that does not depend on when they were made: loading a state makes them anew."""
    return sorted(table.items(), key=lambda entry: str(entry[0]))


def has_float(value: Any) -> bool:
    """Whether a value is a float, or a container with one."""
    if isinstance(value, torch.Tensor):
        return False
    return type(value) is float or (isinstance(value, (tuple, list)) and any(map(has_float, value)))
