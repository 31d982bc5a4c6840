"""Results that are arguments of the function, or views of them: outside the plan, the recorded calls are replayed.

    def f(x): return x.sin(), x.view(2, 2)[0]       x.sin(), and a `ViewOfArgument`: argument 0, view(_, 2, 2), getitem(_, 0)

Under transforms of `torch.func`, the plan of a function computes only the other results. The views are replayed on the
caller's own tensors, in the wrappers of all transforms, and so are views there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode

from aotgrad import torch_compat
from aotgrad.plan_cache.entry import NotCompiled


@dataclass(frozen=True)
class Argument:
    """A placeholder for an argument of the function."""

    index: int


@dataclass(frozen=True, eq=False)
class ViewCall:
    """A call that the function made; in `arguments`, `Argument` and `ViewOfArgument` stand for tensors."""

    function: Callable[..., Any]
    arguments: tuple[tuple, dict[str, Any]]
    grad_mode: bool


@dataclass(frozen=True, eq=False)
class ViewOfArgument:
    """A placeholder for tensor `position` of the result of a call, or for an argument, which can be replayed."""

    origin: ViewCall | Argument
    position: int = 0

    def replay(self, tensors: Sequence[torch.Tensor], made: dict[ViewCall, list[Any]]) -> torch.Tensor:
        """The view of these arguments; `made` are the results of the calls that were replayed."""
        if isinstance(self.origin, Argument):
            return tensors[self.origin.index]
        call = self.origin
        if call not in made:
            args, kwargs = with_views(call.arguments, tensors, made)
            with torch.set_grad_enabled(call.grad_mode):
                made[call] = pytree.tree_leaves(call.function(*args, **kwargs))
        return made[call][self.position]


# No leaf: it is in the structure of what a plan returns.
pytree.register_pytree_node(ViewOfArgument, lambda view: ([], view), lambda _, view: view)


def with_views(value: Any, tensors: Sequence[torch.Tensor], made: dict[ViewCall, list[Any]] | None = None) -> Any:
    """`value` with the views in it replayed on `tensors`."""
    made = {} if made is None else made

    def is_placeholder(leaf: Any) -> bool:
        return isinstance(leaf, ViewOfArgument)

    return pytree.tree_map(
        lambda leaf: leaf.replay(tensors, made) if is_placeholder(leaf) else leaf, value, is_leaf=is_placeholder
    )


@dataclass(frozen=True)
class RawCall:
    """A call with its real arguments, and the position of one of its results.

    `number` counts the calls of the function. `state` is the state of the result right after the call.
    """

    function: Callable[..., Any]
    arguments: tuple[tuple, dict[str, Any]]
    grad_mode: bool
    position: int
    number: int
    state: tuple[Any, ...]


class ViewRecorder(TorchFunctionMode):
    """Records the calls of a function, and finds the results that are its arguments or views of them.

    Raises NotCompiled where the function uses a dual tensor, or one that a transform has wrapped, and has neither got nor
    computed it: it closed over the tensor, which a plan would treat as a constant without derivative.

    Args:
        tensors: the arguments of the function.
        is_traced: whether it becomes a plan.
        others: tensors that it may use, too.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], is_traced: bool = True, others: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.is_traced, self.number = is_traced, -1
        self.known = {id(tensor): tensor for tensor in (*tensors, *others)}
        self.arguments = {id(tensor): ViewOfArgument(Argument(k)) for k, tensor in enumerate(tensors)}
        self.memory = set(map(memory_id, tensors))
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
        written = pytree.tree_leaves((args[:1], arguments[1].get("input")))
        self.is_changed |= changes(func) and any(map(self.shares_memory, written))
        for position, value in enumerate(found):
            if isinstance(value, torch.Tensor) and id(value) not in self.known:
                call = RawCall(func, arguments, torch.is_grad_enabled(), position, self.number, version_and_history(value))
                self.calls[id(value)] = call
        self.known |= {id(value): value for value in found}
        return result

    def shares_memory(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) and memory_id(value) in self.memory

    def without_views(self, result: Any) -> Any:
        """`result` with a `ViewOfArgument` in place of each tensor that shares memory with an argument.

        Raises:
            NotCompiled: no recorded calls made one, or another result was computed from one.
        """
        views = [leaf for leaf in pytree.tree_leaves(result) if self.shares_memory(leaf)]
        if not views:
            return result
        if self.is_changed or self.are_used(views):
            raise NotCompiled
        made: dict[int, ViewCall] = {}
        return pytree.tree_map(lambda leaf: self.view(leaf, made) if self.shares_memory(leaf) else leaf, result)

    def places(self, result: Any) -> tuple[tuple[int, int] | None, ...]:
        """For each tensor of a result, the number of the call that returned it, and its position among the call's results.

        `None` if it was changed since, or comes from elsewhere.
        """
        return tuple(map(self.place, filter(torch.is_tensor, pytree.tree_leaves(result))))

    def place(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        call = self.calls.get(id(tensor))
        if call is None or version_and_history(tensor) != call.state:
            return None
        return call.number, call.position

    def are_used(self, views: Sequence[torch.Tensor]) -> bool:
        """Whether anything but views of arguments was computed from one of these: gradients then pass through it."""
        returned = {id(view) for view in views} - self.arguments.keys()
        others = [call for key, call in self.calls.items() if not self.shares_memory(self.known[key])]
        return any(id(value) in returned for call in others for value in pytree.tree_leaves(call.arguments))

    def view(self, value: Any, made: dict[int, ViewCall]) -> Any:
        """The placeholder of a tensor; other values stay. `made` are calls by their arguments."""
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
            made[key] = ViewCall(raw.function, arguments, raw.grad_mode)
        return ViewOfArgument(made[key], raw.position)


def memory_id(tensor: torch.Tensor) -> int:
    return torch_compat.storage_key(torch_compat.innermost(tensor))


def version_and_history(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The version of a tensor's memory, and its history."""
    with torch_compat.unobserved():
        return torch_compat.version_of(torch_compat.innermost(tensor)), tensor.requires_grad, tensor.grad_fn


def changes(function: Callable) -> bool:
    """Whether a call changes its first argument, judged by its name."""
    name = getattr(function, "__name__", "")
    return name in ("__set__", "__setitem__") or (name.endswith("_") and not name.endswith("__"))
