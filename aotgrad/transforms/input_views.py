"""Results of a function that are its arguments, or views of them: made again, by the calls that made them, of other tensors.

    def f(x): return x.sin(), x.view(2, 2)[0]       x.sin(), and a `ViewOfArgument`: argument 0, view(_, 2, 2), getitem(_, 0)

A plan for the function inside of `torch.func` transforms computes the other results. The views are made outside of it, of
the caller's own tensors with whatever transforms have wrapped them: so they are views there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode

from aotgrad import torch_compat


class NotCompiled(Exception):
    """What a transform makes of this function cannot be returned by a plan: it has to run as it is."""


@dataclass(frozen=True)
class Argument:
    """Stands for an argument of the function."""

    index: int


@dataclass(frozen=True, eq=False)
class Call:
    """What the function called; in `arguments`, `Argument` and `ViewOfArgument` stand for tensors."""

    function: Callable[..., Any]
    arguments: tuple[tuple, dict[str, Any]]
    grad_mode: bool


@dataclass(frozen=True, eq=False)
class ViewOfArgument:
    """Stands for tensor `position` of what a call returned, or for an argument, and knows how to make it again."""

    origin: Call | Argument
    position: int = 0

    def make(self, tensors: Sequence[torch.Tensor], made: dict[Call, list[Any]]) -> torch.Tensor:
        """The view, of these arguments; `made` are the calls that were made again."""
        if isinstance(self.origin, Argument):
            return tensors[self.origin.index]
        call = self.origin
        if call not in made:
            args, kwargs = with_views(call.arguments, tensors, made)
            with torch.set_grad_enabled(call.grad_mode):
                made[call] = pytree.tree_leaves(call.function(*args, **kwargs))
        return made[call][self.position]


# No leaf: what a plan returns has it in its structure.
pytree.register_pytree_node(ViewOfArgument, lambda view: ([], view), lambda _, view: view)


def is_view(value: Any) -> bool:
    return isinstance(value, ViewOfArgument)


def with_views(value: Any, tensors: Sequence[torch.Tensor], made: dict[Call, list[Any]] | None = None) -> Any:
    """`value` with the views in it made of `tensors`."""
    made = {} if made is None else made
    return pytree.tree_map(lambda leaf: leaf.make(tensors, made) if is_view(leaf) else leaf, value, is_leaf=is_view)


@dataclass(frozen=True)
class RawCall:
    """A call with the tensors that it was given, and which of its results is meant.

    `number` counts the calls of the function. `state` is that of the result, as the call left it.
    """

    function: Callable[..., Any]
    arguments: tuple[tuple, dict[str, Any]]
    grad_mode: bool
    position: int
    number: int
    state: tuple[Any, ...]


class ViewRecorder(TorchFunctionMode):
    """Watches a function run, and finds out which of its results are its arguments or views of them.

    Raises NotCompiled where it uses a tensor of a transform, or a dual one, that it was not given nor computed. It closed
    over it: a plan would take it for a constant, and return no derivative. `is_traced`: it becomes a plan. `others` may be
    used, too.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], is_traced: bool = True, others: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.is_traced, self.number = is_traced, -1
        self.known = {id(tensor): tensor for tensor in (*tensors, *others)}
        self.arguments = {id(tensor): ViewOfArgument(Argument(k)) for k, tensor in enumerate(tensors)}
        self.memory = set(map(memory_of, tensors))
        self.calls: dict[int, RawCall] = {}
        self.is_changed = False

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.number += 1
        arguments = (args, kwargs or {})
        unknown = (value for value in pytree.tree_leaves(arguments) if id(value) not in self.known)
        if self.is_traced and any(map(torch_compat.is_differentiated, unknown)):
            raise NotCompiled
        result = func(*args, **arguments[1])
        found = pytree.tree_leaves(result)
        self.is_changed |= changes(func) and bool(args) and self.shares_memory(args[0])
        for position, value in enumerate(found):
            if isinstance(value, torch.Tensor) and id(value) not in self.known:
                call = RawCall(func, arguments, torch.is_grad_enabled(), position, self.number, state_of(value))
                self.calls[id(value)] = call
        self.known |= {id(value): value for value in found}
        return result

    def shares_memory(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and memory_of(value) in self.memory

    def without_views(self, result: Any) -> Any:
        """`result` with a `ViewOfArgument` in the place of each tensor that shares memory with an argument.

        Raises:
            NotCompiled: it is not known how one was made, or another result was computed from one.
        """
        views = [leaf for leaf in pytree.tree_leaves(result) if self.shares_memory(leaf)]
        if not views:
            return result
        if self.is_changed or self.are_used(views):
            raise NotCompiled
        made: dict[int, Call] = {}
        return pytree.tree_map(lambda leaf: self.view(leaf, made) if self.shares_memory(leaf) else leaf, result)

    def places(self, result: Any) -> tuple[tuple[int, int] | None, ...]:
        """For each tensor of a result, which call has made it, and which of the tensors that it returned it is.

        `None` for what was changed since then, or came from elsewhere.
        """
        return tuple(map(self.place, filter(torch.is_tensor, pytree.tree_leaves(result))))

    def place(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        call = self.calls.get(id(tensor))
        if call is None or state_of(tensor) != call.state:
            return None
        return call.number, call.position

    def are_used(self, views: Sequence[torch.Tensor]) -> bool:
        """Whether anything but views of arguments was computed from one of these: a gradient passes through it, then."""
        returned = {id(view) for view in views} - self.arguments.keys()
        others = [call for key, call in self.calls.items() if not self.shares_memory(self.known[key])]
        return any(id(value) in returned for call in others for value in pytree.tree_leaves(call.arguments))

    def view(self, value: Any, made: dict[int, Call]) -> Any:
        """What stands for a tensor, and for what is not a tensor itself; `made` are calls by their arguments."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in self.arguments:
            return self.arguments[id(value)]
        raw = self.calls.get(id(value))
        if raw is None or not self.shares_memory(value):
            raise NotCompiled
        key = id(raw.arguments)
        if key not in made:
            arguments = pytree.tree_map(lambda leaf: self.view(leaf, made), raw.arguments)
            made[key] = Call(raw.function, arguments, raw.grad_mode)
        return ViewOfArgument(made[key], raw.position)


def memory_of(tensor: torch.Tensor) -> int:
    return torch_compat.storage_key(torch_compat.innermost(tensor))


def state_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The version of a tensor's memory, and its history."""
    with torch_compat.unobserved():
        return torch_compat.version_of(torch_compat.innermost(tensor)), tensor.requires_grad, tensor.grad_fn


def changes(function: Callable) -> bool:
    """Whether a call changes its first argument, to judge by its name."""
    name = getattr(function, "__name__", "")
    return name in ("__set__", "__setitem__") or (name.endswith("_") and not name.endswith("__"))
