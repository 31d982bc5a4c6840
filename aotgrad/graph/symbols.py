"""The symbols of dynamic shapes that a value mentions.

In: a node's traced value. Out: sympy symbols, compared by name.

    >>> symbols_of(torch.empty(2, 3))
    ()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def bound_symbol(value: Any) -> sympy.Symbol | None:
    """The symbol that a symbolic int consists of; `None` for an expression, a plain int or a tensor."""
    if not isinstance(value, torch.SymInt):
        return None
    expr = value.node.expr
    return expr if isinstance(expr, sympy.Symbol) else None


def values_of_symbols(places: Mapping[str, tuple[int, int | None]], inputs: Sequence[Any]) -> dict[str, Any]:
    """The values of symbols in a call: each is an input, or a size of one (`Capture.places_of_symbols`).

    >>> values_of_symbols({"s0": (1, None), "s1": (0, 2)}, [torch.ones(4, 5, 6), 3])
    {'s0': 3, 's1': 6}
    """
    return {name: inputs[k] if dim is None else inputs[k].size(dim) for name, (k, dim) in places.items()}


def symbols_of(value: Any) -> tuple[sympy.Symbol, ...]:
    """The symbols in a number, or in the sizes, strides and offset of a tensor, sorted by name."""
    if isinstance(value, SYMBOLIC_NUMBERS):
        numbers = [value]
    elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
        numbers = [*value.shape, *value.stride(), value.storage_offset()]
    else:
        return ()
    symbolic = [n for n in numbers if isinstance(n, SYMBOLIC_NUMBERS)]
    found = {symbol for number in symbolic for symbol in number.node.expr.free_symbols}
    return tuple(sorted(found, key=lambda symbol: symbol.name))
