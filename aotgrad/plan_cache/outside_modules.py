"""Modules that a traced function closes over must keep no tensor of the trace: later calls would not assign it.

    with watched_modules(function):
        function(*traced)                   raises if model.count is a traced tensor now; it is what it was before

What a module assigns that is compiled itself is a result of its plan: `assigned_state.py`. The class `nn.Module` stays
as it is, since the state of every module is read from it. So an attribute is noticed if its module is one that the function
refers to by itself (`modules_of`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.utils._pytree as pytree
from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook

from aotgrad import torch_compat
from aotgrad.capture.hooks import is_empty
from aotgrad.errors import CaptureError
from aotgrad.plan_cache.module_slots import SKIPPED


@dataclass
class OutsideModules:
    """The buffers that were assigned a traced tensor, with the values of before, by module and name.

    A module that the traced function makes itself has had traced buffers from the beginning.

    Attributes:
        attributes: what modules had in their other attributes before the trace.
    """

    before: dict[tuple[int, str], tuple[nn.Module, Any]] = field(default_factory=dict)
    attributes: Mapping[nn.Module, Mapping[str, Any]] = field(default_factory=dict)

    def assign(self, module: nn.Module, name: str, value: Any) -> None:
        table = vars(module)["_buffers"]
        if torch_compat.is_traced(value) and name in table and not torch_compat.is_traced(table[name]):
            self.before.setdefault((id(module), name), (module, table[name]))

    @classmethod
    def of(cls, modules: Iterable[nn.Module]) -> OutsideModules:
        parts = {part: None for module in modules for part in module.modules()}
        return cls(attributes={part: dict(vars(part)) for part in parts})

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


def modules_of(function: Callable) -> list[nn.Module]:
    """The modules that a function refers to: that of its method, those of its closure, and its globals."""
    owner, code = getattr(function, "__self__", None), getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None) or ()
    closed_over = [cell.cell_contents for cell in cells if not is_empty(cell)]
    globals_of = getattr(function, "__globals__", {})
    named = [globals_of[name] for name in getattr(code, "co_names", ()) if name in globals_of]
    return [value for value in (owner, *closed_over, *named) if isinstance(value, nn.Module)]


def kept_attributes(module: nn.Module, before: Mapping[str, Any]) -> list[str]:
    """The attributes that hold a traced tensor, and held another object before."""
    now = [(name, value) for name, value in vars(module).items() if name not in SKIPPED]
    changed = [(name, value) for name, value in now if name not in before or value is not before[name]]
    return [name for name, value in changed if any(map(torch_compat.is_traced, pytree.tree_leaves(value)))]


@contextlib.contextmanager
def watched_modules(function: Callable) -> Iterator[None]:
    """Inside, a function is traced. Afterwards, no module that it has not made holds a tensor of the trace.

    Raises:
        CaptureError: names a buffer or attribute that was.
    """
    outside = OutsideModules.of(modules_of(function))
    handle = register_module_buffer_registration_hook(outside.assign)
    try:
        yield
    finally:
        handle.remove()
        kept = outside.restore()
    if kept is not None:
        raise CaptureError(
            f"the function assigns a tensor to {kept}, which is no argument, so later calls would not assign it; compile "
            "the module itself with aot_module, or return the tensor and assign it outside"
        )
