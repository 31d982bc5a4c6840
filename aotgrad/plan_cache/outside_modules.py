"""Buffers of modules that a traced function closes over must keep no tensor of the trace: later calls would not assign them.

    with watched_modules():
        function(*traced)                   raises if the buffer model.count is a traced tensor now; it is what it was before

What a module assigns that is compiled itself is a result of its plan: `assigned_state.py`. The class `nn.Module` stays
as it is, since the state of every module is read from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook

from aotgrad import torch_compat
from aotgrad.errors import CaptureError


@dataclass
class OutsideModules:
    """The buffers that were assigned a traced tensor, with the values of before, by module and name.

    A module that the traced function makes itself has had traced buffers from the beginning.
    """

    before: dict[tuple[int, str], tuple[nn.Module, Any]] = field(default_factory=dict)

    def assign(self, module: nn.Module, name: str, value: Any) -> None:
        table = vars(module)["_buffers"]
        if torch_compat.is_traced(value) and name in table and not torch_compat.is_traced(table[name]):
            self.before.setdefault((id(module), name), (module, table[name]))

    def restore(self) -> str | None:
        """Let no buffer be a traced tensor that was none before. Returns the name of one that was."""
        found = None
        for (_, name), (module, before) in self.before.items():
            table = vars(module)["_buffers"]
            if torch_compat.is_traced(table.get(name)):
                found, table[name] = f"{name!r} of a {type(module).__name__}", before
        return found


@contextlib.contextmanager
def watched_modules() -> Iterator[None]:
    """Inside, a function is traced. Afterwards, no buffer of a module that it has not made is a tensor of the trace.

    Raises:
        CaptureError: names a buffer that was.
    """
    outside = OutsideModules()
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
