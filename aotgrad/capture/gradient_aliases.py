"""Values that a function both computes and gets as an argument: the gradient of the value ends at the argument.

A second-order function reruns the original function. It computes the original's results and also gets them as arguments; the
caller asks for the gradient of the argument.

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
    """Inside, collect all declared joins. Enclosing collectors get them, too."""
    joins: list[Join] = []
    token = _collectors.set((*_collectors.get(), joins))
    try:
        yield joins
    finally:
        _collectors.reset(token)


def declare(argument: torch.Tensor, computed: torch.Tensor) -> None:
    """Declare that `computed` has the value of `argument`."""
    for joins in _collectors.get():
        joins.append((argument, computed))


def positions(joins: Sequence[Join], arguments: Sequence[Any]) -> tuple[tuple[int, torch.Tensor], ...]:
    """The joins of `arguments`, each with the position of its argument."""
    position = {id(argument): k for k, argument in enumerate(arguments)}
    return tuple((position[id(argument)], computed) for argument, computed in joins if id(argument) in position)
