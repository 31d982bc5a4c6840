"""The decorator for functions that are not traced, and what a trace does with their calls."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, overload

import torch


@dataclass(frozen=True)
class Untraced:
    """A function that is not traced, with its name, and the reason.

    `fake`: returns tensors like its results for fake arguments. `None`: nothing is known of its results before it runs.
    """

    function: Callable
    name: str
    reason: str
    fake: Callable | None = None


Record = Callable[[Untraced, tuple, dict[str, Any]], Any]
"""Records a call: the function and its arguments."""

_open_record: contextvars.ContextVar[Record | None] = contextvars.ContextVar("_open_record", default=None)
F = TypeVar("F", bound=Callable)


@overload
def island(function: F) -> F: ...
@overload
def island(*, fake: Callable) -> Callable[[F], F]: ...
def island(function: Any = None, *, fake: Callable | None = None) -> Any:
    """Let a function run in eager, between compiled graphs: its Python code is not traced.

    >>> @island
    ... def round_to_grid(x):
    ...     return torch.from_numpy(x.detach().numpy().round(2))

    In a function of `aot_function`, `aot_module` or `train_step`, it becomes one op of the graph. It returns tensors, in any
    pytree, and its gradients are those that eager computes. When the function around it is compiled, it runs once more,
    forward and backward, to learn the forms of its results, which may depend on the sizes and dtypes of its arguments only.
    It may change arguments and return views of them, if it always does. Behind Dynamo it breaks the graph.

    Args:
        fake: gets the arguments as fake tensors, and returns tensors of the sizes, strides and dtypes that the function
            returns, such as `torch.empty_like`. With it, one plan serves symbolic sizes; without it, they become constants.

    Raises:
        CaptureError: when the function around it is compiled, if it returns other values than tensors, shares memory in a
            way that torch does not know, or needs the gradient of a tensor that is no argument.
        EagerCallError: when it runs, if its results have other forms than before, or if it changes other arguments.
    """
    if function is None:
        return functools.partial(_marked, fake=fake)
    return _marked(function, fake)


def _marked(function: Callable, fake: Callable | None) -> Callable:
    untraced = Untraced(function, function_label(function), "it is marked as an island", fake)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        record = _open_record.get()
        if record is None:
            return function(*args, **kwargs)
        return record(untraced, args, kwargs)

    vars(call)["is_island"] = True
    return torch.compiler.disable(call)


def function_label(function: Any) -> str:
    """What messages call a function or op."""
    return str(getattr(function, "__qualname__", function))


@contextlib.contextmanager
def recorded_by(record: Record | None) -> Iterator[None]:
    """Inside, `record` gets the calls of marked functions; `None`: they run."""
    token = _open_record.set(record)
    try:
        yield
    finally:
        _open_record.reset(token)


@contextlib.contextmanager
def recorded_applications(classes: dict[type[torch.autograd.Function], str]) -> Iterator[None]:
    """Inside, the open record gets the calls of these autograd functions, each with the reason."""
    with contextlib.ExitStack() as stack:
        for kind, reason in classes.items():
            stack.enter_context(_recorded_application(kind, reason))
        yield


@contextlib.contextmanager
def _recorded_application(kind: Any, reason: str) -> Iterator[None]:
    before = kind.__dict__.get("apply")
    own = before.own if isinstance(before, RecordedApply) else before  # a derivative is traced inside of a trace
    kind.apply = RecordedApply(kind, reason, own)
    try:
        yield
    finally:
        if before is None:
            del kind.apply
        else:
            kind.apply = before


@dataclass(frozen=True)
class RecordedApply:
    """The `apply` of an autograd function. Where a record is open, its calls are recorded; other threads get the usual one.

    `own`: what the class had in its place, `None` if it inherits its `apply`. A subclass is another function.
    """

    is_of_trace: ClassVar[bool] = True

    kind: Any
    reason: str
    own: Any

    def __get__(self, instance: Any, owner: Any) -> Callable:
        usual = super(self.kind, owner).apply if self.own is None else self.own.__get__(instance, owner)
        record = _open_record.get()
        if record is None or owner is not self.kind:
            return usual
        return lambda *args: record(Untraced(usual, owner.__qualname__, self.reason, usual), args, {})
