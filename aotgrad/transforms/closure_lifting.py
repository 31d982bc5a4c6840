"""Tensors that a function closed over, as arguments: what a transform has wrapped is no constant of a plan.

    def f(x): return x * w      w a tensor of an outer torch.func.grad      lifted: g({0: w}, x), differentiated by w, too

Looked for in the cells of the function, and of functions in these. A function is called with copies of such cells.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.plan_cache.arguments import Arguments

Cell = types.CellType


def lifted(function: Callable, arguments: Arguments) -> tuple[Callable, Arguments]:
    """The function, and its arguments; what it closed over and may get a gradient is the first of these."""
    closed = {k: tensor for k, tensor in enumerate(map(content, cells_of(function))) if is_differentiated(tensor)}
    if not closed:
        return function, arguments
    return WithClosure(function), Arguments.of((closed, *arguments.args), arguments.kwargs)


@dataclass(frozen=True)
class WithClosure:
    """Calls a function with other tensors in its cells, given by their positions."""

    function: Any

    def __call__(self, closed: Mapping[int, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        cells = cells_of(self.function)
        copies = {id(cells[position]): Cell(tensor) for position, tensor in closed.items()}
        return with_cells(self.function, copies)(*args, **kwargs)


def is_differentiated(value: Any) -> bool:
    """Whether a value is a tensor that gets a gradient, a tangent or a batch."""
    return isinstance(value, torch.Tensor) and (torch_compat.is_differentiated(value) or value.requires_grad)


def content(cell: Cell) -> Any:
    """What is in a cell; `None` if nothing is."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def cells_of(function: Any) -> list[Cell]:
    """The cells of a function, and of the functions in them; each once, in an order that depends on the functions only."""
    found: dict[int, Cell] = {}
    left = [function]
    while left:
        function = left.pop()
        closure = function.__closure__ if isinstance(function, types.FunctionType) else None
        new = [cell for cell in closure or () if id(cell) not in found]
        found.update((id(cell), cell) for cell in new)
        left += map(content, new)
    return list(found.values())


def with_cells(function: types.FunctionType, copies: dict[int, Cell]) -> types.FunctionType:
    """A copy of a function with other cells in the place of some, by their ids; so it is for the functions in its cells."""
    cells = tuple(copied(cell, copies) for cell in function.__closure__ or ())
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def copied(cell: Cell, copies: dict[int, Cell]) -> Cell:
    """What takes the place of a cell: itself, if nothing in it is to be replaced."""
    function = content(cell)
    if id(cell) not in copies and not copies.keys().isdisjoint(map(id, cells_of(function))):
        copies[id(cell)] = Cell()  # before its content, which may refer to it
        copies[id(cell)].cell_contents = with_cells(function, copies)
    return copies.get(id(cell), cell)
