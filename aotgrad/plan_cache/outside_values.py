"""What a traced function captures must keep no tensor of the trace, and must stay as it is in the backward.

    with undone_if_it_fails():              what the function has changed is undone if a later stage raises
        with watched_values(function):
            function(*traced)               raises if box.last is a traced tensor now; it is what it was before

What a module assigns that is compiled itself is a result of its plan: `assigned_state.py`. Other captured values may change:
each call retraces the function then. A backward is not retraced with each run, so a change there is an error. The class
`nn.Module` stays as it is, since the state of every module is read from it.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch.utils._pytree as pytree
from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook

from aotgrad import torch_compat
from aotgrad.capture import regions
from aotgrad.errors import CaptureError
from aotgrad.guards.captured_values import Captured
from aotgrad.plan_cache.module_slots import SKIPPED
from aotgrad.plan_cache.module_state import LiftedForward, captured_by_module


@dataclass
class PythonDraws:
    """Whether a traced function draws random numbers of Python or NumPy: other ones in each call."""

    found: bool = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        before = python_generators()
        yield
        self.found = self.found or python_generators() != before


def python_generators() -> Hashable:
    """The states of the generators of the modules `random` and `numpy.random`."""
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return random.getstate()
    kind, keys, *others = numpy.get_state()
    return (random.getstate(), kind, keys.tobytes(), *others)


@dataclass
class OutsideModules:
    """The buffers that were assigned a traced tensor, with the values of before, by module and name.

    A module that the traced function makes itself has had traced buffers from the beginning.

    Attributes:
        known: modules that hold traced tensors for another reason.
        attributes: what modules had in their other attributes before the trace.
    """

    known: Collection[nn.Module] = ()
    before: dict[tuple[int, str], tuple[nn.Module, Any]] = field(default_factory=dict)
    attributes: Mapping[nn.Module, Mapping[str, Any]] = field(default_factory=dict)

    def assign(self, module: nn.Module, name: str, value: Any) -> None:
        table = vars(module)["_buffers"]
        if module in self.known:
            return
        if torch_compat.is_traced(value) and name in table and not torch_compat.is_traced(table[name]):
            self.before.setdefault((id(module), name), (module, table[name]))

    @classmethod
    def of(cls, modules: Iterable[nn.Module], known: Iterable[Any]) -> OutsideModules:
        parts = {part: None for module in modules for part in module.modules()}
        held = frozenset(each for each in known if isinstance(each, nn.Module))
        return cls(held, attributes={part: dict(vars(part)) for part in parts})

    def restore(self) -> str | None:
        """Let nothing be a traced tensor that was none before. Returns the name of one that was."""
        found = None
        for (_, name), (module, before) in self.before.items():
            table = vars(module)["_buffers"]
            if torch_compat.is_traced(table.get(name)):
                found, table[name] = f"{name!r} of a {type(module).__name__}", before
        for module, before in self.attributes.items():
            for name in kept_attributes(module, before):
                found = f"{name!r} of a {type(module).__name__}"
                vars(module).update({name: before[name]} if name in before else {})
                if name not in before:
                    del vars(module)[name]
        return found


def kept_attributes(module: nn.Module, before: Mapping[str, Any]) -> list[str]:
    """The attributes that hold a traced tensor, and held another object before."""
    now = [(name, value) for name, value in vars(module).items() if name not in SKIPPED]
    changed = [(name, value) for name, value in now if name not in before or value is not before[name]]
    return [name for name, value in changed if has_traced(value)]


def kept_value(captured: Captured) -> str | None:
    """The name of a captured variable, attribute or container that holds a traced tensor, and held none."""
    kept = (each.name for each in captured.changes() if has_traced(each.now) and not has_traced(each.before))
    return next(kept, None)


def undo_all(captured: Captured) -> None:
    """Let everything that is captured be what it was."""
    for change in captured.changes():
        change.undo()


_traced: ContextVar[list[Captured] | None] = ContextVar("aotgrad_traced", default=None)
"""What the functions have captured that were traced for a plan in the making, as it was before."""


@contextlib.contextmanager
def undone_if_it_fails() -> Iterator[None]:
    """Inside, a plan is made. If that raises, what its traces have changed of captured values is undone."""
    around, traced = _traced.get(), list[Captured]()
    token = _traced.set(traced)
    try:
        yield
    except BaseException:  # the function may be traced again, or run
        for captured in reversed(traced):
            undo_all(captured)
        raise
    finally:
        _traced.reset(token)
    if around is not None:
        around += traced


def has_traced(value: Any) -> bool:
    return any(map(torch_compat.is_traced, pytree.tree_leaves(value)))


@contextlib.contextmanager
def watched_values(function: Callable, known: Iterable[Any] = ()) -> Iterator[None]:
    """Inside, a function is traced. Afterwards, nothing that it captures holds a tensor of the trace.

    Args:
        known: objects that hold traced tensors for another reason.

    Raises:
        CaptureError: names what does.
    """
    captured = captured_by(function, known)
    outside = OutsideModules.of(captured.parts, known)
    handle = register_module_buffer_registration_hook(outside.assign)
    regions.open_in_backward(lambda: unchanged_in_backward(function, known))
    try:
        yield
    except BaseException:  # the function may run again: its effects would happen twice
        undo_all(captured)
        raise
    finally:
        handle.remove()
        kept = outside.restore() or kept_value(captured)
    if kept is not None:
        undo_all(captured)
        raise CaptureError(
            f"the function assigns a tensor to {kept}, which is no argument, so later calls would not assign it; return the "
            "tensor and assign it outside, or compile the module itself with aot_module"
        )
    if (traced := _traced.get()) is not None:
        traced.append(captured)


@contextlib.contextmanager
def unchanged_in_backward(function: Callable, known: Iterable[Any]) -> Iterator[Collection[str]]:
    """Inside, the backward of a function is traced.

    Raises:
        CaptureError: it changes what the function captures, which later backwards would not do.
    """
    captured = captured_by(function, known)
    yield ()
    names = [change.name for change in captured.changes()]
    undo_all(captured)
    if names:
        raise CaptureError(
            f"a hook, the backward of an autograd function, or a checkpointed region changes {names[0]} in the backward, "
            "which is traced only once; register the hook outside of the function, or use an island"
        )


def captured_by(function: Callable, known: Iterable[Any]) -> Captured:
    """What a function captures, or the forward of a module; of other callables of aotgrad's own, nothing."""
    if isinstance(function, LiftedForward):
        return captured_by_module(function.lifted.module)
    is_users = isinstance(function, (types.FunctionType, types.MethodType, functools.partial))
    return Captured.of([function] if is_users else [], known)
