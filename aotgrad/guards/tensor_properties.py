"""Tensor properties that the graph does not record: reading one becomes a guard, or an error.

reads = PropertyReads()
with reads.of(arguments):
    function(*arguments)
reads.positions("storage offset")           the arguments whose storage offset the trace depends on
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from aotgrad import torch_compat
from aotgrad.errors import CaptureError

FACTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "is a leaf": operator.attrgetter("is_leaf"),
    "is a view": torch_compat.is_differentiable_view,
    "is a hooked view": torch_compat.is_hooked_view,
    "is a converted view": torch_compat.is_converted_view,
    "is a view of a leaf": torch_compat.is_view_of_leaf,
    "is forbidden after a write": torch_compat.is_forbidden_after_a_write,
    "storage offset": torch.Tensor.storage_offset,
    "has a gradient": lambda tensor: tensor.grad is not None,
}
"""The properties, by name, and their getters."""

ONLY_OF_VIEWS = {"is a hooked view", "is a converted view", "is a view of a leaf", "is forbidden after a write"}
"""Properties that hold for no tensor for which "is a view" does not hold."""

Fact = tuple[int, str, Any]
"""The position of a tensor, a property, and its value."""

_TENSOR: Any = torch.Tensor  # type checkers know no `__get__` of its properties

GUARDED: dict[Callable, str] = {
    _TENSOR.is_leaf.__get__: "is a leaf",
    torch.Tensor.storage_offset: "storage offset",
    _TENSOR.grad.__get__: "has a gradient",
}


@dataclass(frozen=True)
class TracedWrapper:
    """A wrapper subclass in a trace. It has the history of its parts, not its own."""

    value: torch.Tensor
    name: str
    is_leaf: bool

    def answer(self, func: Callable, call: Callable[[], Any]) -> Any:
        """What the caller's wrapper answers.

        Raises:
            CaptureError: nobody knows in a trace.
        """
        if func == _TENSOR.is_leaf.__get__:
            return self.is_leaf
        if func == torch_compat.GRAD_FN and self.is_leaf:
            return None
        if func == _TENSOR.grad.__get__ or func in torch_compat.HISTORY_GETTERS:
            reject_read(torch_compat.HISTORY_GETTERS.get(func, ".grad"), self.name)
        return call()


def facts_of(tensors: Sequence[Any], wanted: Iterable[tuple[str, int]]) -> tuple[Fact, ...]:
    """The values of some properties, by name and position; without those that follow from others of them."""
    found = {(name, k): FACTS[name](tensors[k]) for name, k in sorted(wanted)}
    return tuple((k, name, value) for (name, k), value in found.items() if not follows(name, k, found))


def follows(name: str, position: int, found: Mapping[tuple[str, int], Any]) -> bool:
    return name in ONLY_OF_VIEWS and found.get(("is a view", position)) is False


def facts_hold(facts: Iterable[Fact], tensors: Sequence[Any]) -> bool:
    return all(FACTS[name](tensors[k]) == value for k, name, value in facts)


class PropertyReads:
    """The properties of its arguments that a function reads."""

    def __init__(self) -> None:
        self.found: set[tuple[str, int]] = set()

    def positions(self, name: str) -> list[int]:
        return sorted(position for what, position in self.found if what == name)

    @contextlib.contextmanager
    def of(self, arguments: Sequence[Any], wrappers: Sequence[TracedWrapper] = ()) -> Iterator[None]:
        """While this is open, record what is read of `arguments`, and answer what is read of wrappers.

        Raises:
            CaptureError: the function hooks and changes an argument, which moves its hooks to another history.
        """
        before = versions(arguments)
        with Reader(self, arguments, wrappers) as reader:
            yield
        after = versions(arguments) if reader.hooked else before
        for position in reader.hooked:
            if before[position] != after[position]:
                reject_hook(position)

    def check(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise if the function read a property that a trace does not have.

        Raises:
            CaptureError: names the argument.
        """
        for position in self.positions("has a gradient"):
            if tensors[position].grad is not None:
                reject_read(".grad", f"input {position}")


class Reader(TorchFunctionMode):
    """Records the reads of some arguments, and answers those of wrappers."""

    def __init__(self, reads: PropertyReads, arguments: Sequence[Any], wrappers: Sequence[TracedWrapper]) -> None:
        super().__init__()
        self.reads = reads
        self.wrappers = {id(each.value): each for each in wrappers}
        self.hooked: set[int] = set()
        self.arguments = {k: argument for k, argument in enumerate(arguments) if isinstance(argument, torch.Tensor)}
        self.position_of = {id(argument): k for k, argument in self.arguments.items()}

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if args:
            if (wrapper := self.wrappers.get(id(args[0]))) is not None:
                return wrapper.answer(func, functools.partial(func, *args, **(kwargs or {})))
            if func in torch_compat.INHERITED_GETTERS:
                for position in self.seen_through(args[0]):
                    self.note(func, position)
            elif (position := self.position_of.get(id(args[0]))) is not None:
                self.note(func, position)
        return func(*args, **(kwargs or {}))

    def note(self, func: Callable, position: int) -> None:
        if func in GUARDED:
            self.reads.found.add((GUARDED[func], position))
        elif func is torch.Tensor.register_hook:
            self.hooked.add(position)
        elif func in torch_compat.HISTORY_GETTERS:
            reject_read(torch_compat.HISTORY_GETTERS[func], f"input {position}")

    def seen_through(self, tensor: torch.Tensor) -> list[int]:
        """The argument that a tensor is, or those that it is a view of."""
        if id(tensor) in self.position_of:
            return [self.position_of[id(tensor)]]
        with torch_compat.unobserved():
            memory = torch_compat.storage_key(tensor)
            return [k for k, argument in self.arguments.items() if torch_compat.storage_key(argument) == memory]


def versions(arguments: Sequence[Any]) -> list[int | None]:
    """The versions of tensors. No `Reader` records these reads."""
    with torch_compat.unobserved():
        return [torch_compat.version_of(each) if isinstance(each, torch.Tensor) else None for each in arguments]


def reject_hook(position: int) -> None:
    """Raises CaptureError: which gradient the hook sees depends on when it was registered."""
    raise CaptureError(
        f"the function hooks input {position}, which it changes in place; call register_hook() outside of the compiled "
        "function"
    )


def reject_read(what: str, name: str) -> None:
    """Raises CaptureError: a traced tensor has another value of `what` than the caller's."""
    raise CaptureError(
        f"the function reads {what} of {name}, which a traced tensor does not have; read it outside of the "
        "compiled function, and pass what follows from it as an argument"
    )
