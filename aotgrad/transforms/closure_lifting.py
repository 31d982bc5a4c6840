"""Makes closed-over tensors arguments: a tensor that a transform has wrapped cannot be a constant of a plan.

    def f(x): return x * w      w a tensor of an outer torch.func.grad      lifted: g({0: w}, x), differentiated by w, too

Such tensors are found in the cells of the function, and of the functions in these cells. The function then runs with copies
of its cells.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.plan_cache.arguments import Arguments


def lift_closure(function: Callable, arguments: Arguments) -> tuple[Callable, Arguments]:
    """The function and its arguments. The first of these are the closed-over tensors that may get a gradient."""
    closed = {k: tensor for k, tensor in enumerate(map(content, cells_of(function))) if needs_lifting(tensor)}
    if not closed:
        return function, arguments
    return ClosureCall(function), Arguments.of((closed, *arguments.args), arguments.kwargs)


@dataclass(frozen=True)
class ClosureCall:
    """Calls a function with other tensors in its cells, by their positions."""

    function: Any

    def __call__(self, closed: Mapping[int, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        cells = cells_of(self.function)
        copies = {id(cells[position]): types.CellType(tensor) for position, tensor in closed.items()}
        return with_cells(self.function, copies)(*args, **kwargs)


def needs_lifting(value: Any) -> bool:
    """Whether a value is a tensor with a gradient, a tangent or a batch."""
    return isinstance(value, torch.Tensor) and (torch_compat.is_differentiated(value) or value.requires_grad)


def content(cell: types.CellType) -> Any:
    """The content of a cell; `None` if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def cells_of(function: Any) -> list[types.CellType]:
    """The cells of a function, and of the functions in them: each once, in an order that depends on the functions only."""
    found: dict[int, types.CellType] = {}
    left = [function]
    while left:
        function = left.pop()
        closure = function.__closure__ if isinstance(function, types.FunctionType) else None
        new = [cell for cell in closure or () if id(cell) not in found]
        found.update((id(cell), cell) for cell in new)
        left += map(content, new)
    return list(found.values())


def with_cells(function: types.FunctionType, copies: dict[int, types.CellType]) -> types.FunctionType:
    """A copy of a function, and of the functions in its cells, with other cells in place of some, by their ids."""
    cells = tuple(copy_of_cell(cell, copies) for cell in function.__closure__ or ())
    copy = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def copy_of_cell(cell: types.CellType, copies: dict[int, types.CellType]) -> types.CellType:
    """The cell that replaces a cell: the cell itself, if nothing in it is replaced."""
    function = content(cell)
    if id(cell) not in copies and not copies.keys().isdisjoint(map(id, cells_of(function))):
        copies[id(cell)] = types.CellType()  # before its content, which may refer to it
        copies[id(cell)].cell_contents = with_cells(function, copies)
    return copies.get(id(cell), cell)
