"""Modules that a traced function closes over must keep no tensor of the trace: later calls would not assign it.

    with watched_modules(function):
        function(*traced)                   raises if model.count is a traced tensor now; it is what it was before

What a module assigns that is compiled itself is a result of its plan: `assigned_state.py`. The class `nn.Module` stays
as it is, since the state of every module is read from it. So an attribute is noticed if its module is called, or if its
method is what is traced.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch.utils._pytree as pytree
from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook, register_module_forward_pre_hook

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.plan_cache.module_slots import SKIPPED


@dataclass
class OutsideModules:
    """The buffers that were assigned a traced tensor, with the values of before, by module and name.

    A module that the traced function makes itself has had traced tensors from the beginning, or is gone after the trace.

    Attributes:
        called: what the modules that were called had in their other attributes when they were called first.
    """

    before: dict[tuple[int, str], tuple[nn.Module, Any]] = field(default_factory=dict)
    called: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = field(default_factory=weakref.WeakKeyDictionary)

    def assign(self, module: nn.Module, name: str, value: Any) -> None:
        table = vars(module)["_buffers"]
        if torch_compat.is_traced(value) and name in table and not torch_compat.is_traced(table[name]):
            self.before.setdefault((id(module), name), (module, table[name]))

    def call(self, module: nn.Module, inputs: Any = None) -> None:
        if module not in self.called:
            self.called[module] = {name: value for name, value in vars(module).items() if name not in SKIPPED}

    def restore(self) -> str | None:
        """Let nothing be a traced tensor that was none before. Returns the name of one that was."""
        found = None
        for (_, name), (module, before) in self.before.items():
            table = vars(module)["_buffers"]
            if torch_compat.is_traced(table.get(name)):
                found, table[name] = f"{name!r} of a {type(module).__name__}", before
        for module, before in self.called.items():
            for name in kept_attributes(module, before):
                found = f"{name!r} of a {type(module).__name__}"
                vars(module).update({name: before[name]} if name in before else {})
                if name not in before:
                    del vars(module)[name]
        return found


def kept_attributes(module: nn.Module, before: dict[str, Any]) -> list[str]:
    """The attributes that hold a traced tensor, and held another object before; none if the module itself is traced."""
    if any(map(torch_compat.is_traced, (*module.parameters(), *module.buffers(), *pytree.tree_leaves(before)))):
        return []
    now = [(name, value) for name, value in vars(module).items() if name not in SKIPPED]
    changed = [(name, value) for name, value in now if name not in before or value is not before[name]]
    return [name for name, value in changed if any(map(torch_compat.is_traced, pytree.tree_leaves(value)))]


@contextlib.contextmanager
def watched_modules(function: Callable) -> Iterator[None]:
    """Inside, a function is traced. Afterwards, no module that it has not made holds a tensor of the trace.

    Raises:
        CaptureError: names a buffer or attribute that was.
    """
    outside = OutsideModules()
    if isinstance(owner := getattr(function, "__self__", None), nn.Module):
        outside.call(owner)
    handles = (register_module_buffer_registration_hook(outside.assign), register_module_forward_pre_hook(outside.call))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        kept = outside.restore()
    if kept is not None:
        raise CaptureError(
            f"the function assigns a tensor to {kept}, which is no argument, so later calls would not assign it; compile "
            "the module itself with aot_module, or return the tensor and assign it outside"
        )
