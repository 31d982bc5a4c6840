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
import itertools
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch.utils._pytree as pytree
from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook

from aotgrad import torch_compat
from aotgrad.capture import regions
from aotgrad.errors import CaptureError
from aotgrad.guards.captured_values import Captured, CapturedChange
from aotgrad.guards.module_attributes import CapturedState, ModuleAttributes
from aotgrad.guards.python_values import hashable_key
from aotgrad.plan_cache.module_state import LiftedForward


@dataclass
class PythonDraws:
    """Whether a traced function draws random numbers of Python or NumPy: other ones in each call."""

    found: bool = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        before = torch_compat.PythonGenerators.now()
        regions.open_in_backward(self.noted_in_backward)
        yield
        self.found = self.found or torch_compat.PythonGenerators.now() != before

    @contextlib.contextmanager
    def noted_in_backward(self) -> Iterator[Collection[str]]:
        before = torch_compat.PythonGenerators.now()
        yield ()
        self.found = self.found or torch_compat.PythonGenerators.now() != before


@dataclass
class AssignedBuffers:
    """The buffers of other modules that were assigned a traced tensor, with the values of before, by module and name.

    A module that the traced function makes itself has had traced buffers from the beginning.

    Attributes:
        known: modules that hold traced tensors for another reason.
    """

    known: Collection[nn.Module]
    before: dict[tuple[int, str], tuple[nn.Module, Any]] = field(default_factory=dict)

    def assign(self, module: nn.Module, name: str, value: Any) -> None:
        table = vars(module)["_buffers"]
        if module in self.known:
            return
        if torch_compat.is_traced(value) and name in table and not torch_compat.is_traced(table[name]):
            self.before.setdefault((id(module), name), (module, table[name]))

    def restore(self) -> str | None:
        """Let nothing be a traced tensor that was none before. Returns the name of one that was."""
        found = None
        for (_, name), (module, before) in self.before.items():
            table = vars(module)["_buffers"]
            if torch_compat.is_traced(table.get(name)):
                found, table[name] = f"{name!r} of a {type(module).__name__}", before
        return found


@dataclass(frozen=True)
class OutsideValues:
    """Values outside of a function that it may change, as they were when this was made.

    Attributes:
        captured: what it captures.
        compiled: the attributes of modules that are compiled with it, which may be assigned tensors.
    """

    captured: CapturedState
    compiled: ModuleAttributes

    @classmethod
    def of(cls, function: Callable, known: Iterable[Any]) -> OutsideValues:
        lifted = [function.lifted.module] if isinstance(function, LiftedForward) else []
        compiled = [*lifted, *(each for each in known if isinstance(each, nn.Module))]
        return cls(CapturedState.of(captured_by(function, known)), ModuleAttributes.of(compiled))

    def changes(self) -> Iterator[CapturedChange]:
        return itertools.chain(self.captured.changes(), self.compiled.changes())

    def undo(self) -> None:
        """Let everything be what it was."""
        for change in list(self.changes()):
            change.undo()

    def kept(self) -> str | None:
        """The name of a place that holds a traced tensor, and held none."""
        kept = (each.name for each in self.captured.changes() if has_traced(each.now) and not has_traced(each.before))
        return next(kept, None)


_traced: ContextVar[list[OutsideValues] | None] = ContextVar("aotgrad_traced", default=None)
"""What the functions may change that were traced for a plan in the making, as it was before."""


@contextlib.contextmanager
def undone_if_it_fails(*values: OutsideValues) -> Iterator[None]:
    """Inside, a plan is made. If that raises, what its traces have changed and drawn is undone, and changes of `values`."""
    around, traced, generators = _traced.get(), list(values), torch_compat.PythonGenerators.now()
    token = _traced.set(traced)
    try:
        yield
    except BaseException:  # the function may be traced again, or run: its effects would happen twice
        for each in reversed(traced):
            each.undo()
        generators.restore()
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
    values = OutsideValues.of(function, known)
    buffers = AssignedBuffers({each for each in known if isinstance(each, nn.Module)})
    handle = register_module_buffer_registration_hook(buffers.assign)
    regions.open_in_backward(lambda: unchanged_in_backward(function, known))
    with undone_if_it_fails(values):
        try:
            yield
        finally:
            handle.remove()
            kept = buffers.restore() or values.kept()
        if kept is not None:
            raise CaptureError(
                f"the function assigns a tensor to {kept}, which is no argument, so later calls would not assign it; return "
                "the tensor and assign it outside, or compile the module itself with aot_module"
            )


@contextlib.contextmanager
def unchanged_in_backward(function: Callable, known: Iterable[Any]) -> Iterator[Collection[str]]:
    """Inside, the backward of a function is traced.

    Raises:
        CaptureError: it changes what the function captures, which later backwards would not do.
    """
    values = OutsideValues.of(function, known)
    yield ()
    names = [change.name for change in values.changes() if not are_equal(change.now, change.before)]
    values.undo()
    if names:
        raise CaptureError(
            f"a hook, the backward of an autograd function, or a checkpointed region changes {names[0]} in the backward, "
            "which is traced only once; register the hook outside of the function, or use an island"
        )


def are_equal(now: Any, before: Any) -> bool:
    """Whether two values have the same content."""
    return hashable_key(now) == hashable_key(before)


def captured_by(function: Callable, known: Iterable[Any]) -> Captured:
    """What a function captures, or the forward of a module; of other callables of aotgrad's own, nothing."""
    if isinstance(function, LiftedForward):
        return Captured.of_module(function.lifted.module, with_own_hooks=False)
    is_users = isinstance(function, (types.FunctionType, types.MethodType, functools.partial))
    return Captured.of([function] if is_users else [], known)
