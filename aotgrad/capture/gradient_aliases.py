"""Values that a function computes and that are an argument of it, too: the gradient of one ends at the other.

A second-order function runs the original one again, so it computes the original's results, and gets them as arguments. What
the caller asks a gradient for is the argument.

    with collected() as joins:
        h = x.exp(); declare(result, h); g = h.sin()        joins: [(result, h)]    the gradient of g reaches `result`, not x
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any

import torch

Join = tuple[torch.Tensor, torch.Tensor]
_collectors: contextvars.ContextVar[tuple[list[Join], ...]] = contextvars.ContextVar("_open", default=())


@contextlib.contextmanager
def collected() -> Iterator[list[Join]]:
    """Inside, what is declared is collected, also by those that are open outside."""
    joins: list[Join] = []
    token = _collectors.set((*_collectors.get(), joins))
    try:
        yield joins
    finally:
        _collectors.reset(token)


def declare(argument: torch.Tensor, computed: torch.Tensor) -> None:
    """Say that `computed` is `argument`."""
    for joins in _collectors.get():
        joins.append((argument, computed))


def positions(joins: Sequence[Join], arguments: Sequence[Any]) -> tuple[tuple[int, torch.Tensor], ...]:
    """The joins of `arguments`, by position."""
    position = {id(argument): k for k, argument in enumerate(arguments)}
    return tuple((position[id(argument)], computed) for argument, computed in joins if id(argument) in position)
