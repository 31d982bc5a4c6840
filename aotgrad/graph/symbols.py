"""The symbols of dynamic shapes that a value mentions.

In: a node's traced value. Out: sympy symbols, compared by name.

    >>> symbols_of(torch.empty(2, 3))
    ()
"""

from __future__ import annotations

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
