"""Modules that a traced function closes over must keep no tensor of the trace: nobody would assign that in later calls.

    with watched_modules():
        function(*traced)                   raises if model.last is a traced tensor now; it is what it was before

What a module assigns that is compiled itself is a result of its plan: `assigned_buffers.py`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.plan_cache.assigned_buffers import TABLES


@dataclass
class OutsideModules:
    """The modules that were assigned a traced tensor, each with what its dictionaries held before.

    Attributes:
        made: the modules that the traced function has made itself.
    """

    before: dict[int, tuple[nn.Module, list[tuple[dict, dict]]]] = field(default_factory=dict)
    made: dict[int, nn.Module] = field(default_factory=dict)

    def make(self, module: nn.Module, *_: Any) -> None:
        self.made[id(module)] = module

    def assign(self, module: nn.Module, name: str, value: Any = None, *_: Any) -> None:
        own = vars(module)
        if torch_compat.is_traced(value) and id(module) not in {**self.made, **self.before} and TABLES[0] in own:
            self.before[id(module)] = (module, [(table, dict(table)) for table in (*(own[name] for name in TABLES), own)])

    def restore(self) -> str | None:
        """Let the modules hold no traced tensor that they did not hold before. Returns the name of one that did."""
        found = None
        for module, tables in self.before.values():
            for now, before in tables:
                kept = [key for key, value in now.items() if value is not before.get(key) and torch_compat.is_traced(value)]
                if kept:
                    found = f"{kept[0]!r} of a {type(module).__name__}"
                    now.clear()
                    now.update(before)
        return found


@contextlib.contextmanager
def watched_modules() -> Iterator[None]:
    """Inside, a function is traced. Afterwards, modules that it has not made itself hold no tensor of the trace.

    Raises:
        CaptureError: names the attribute of a module that did.
    """
    outside = OutsideModules()
    noted = {"__init__": outside.make, "__setattr__": outside.assign}  # the state of a module has no special methods
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(register_module_buffer_registration_hook(outside.assign).remove)
            for name, note in noted.items():
                stack.enter_context(mock.patch.object(nn.Module, name, noting(getattr(nn.Module, name), note)))
            yield
    finally:
        kept = outside.restore()
    if kept is not None:
        raise CaptureError(
            f"the function assigns a tensor to {kept}, which is no argument, so later calls would not assign it; compile "
            "the module itself with aot_module, or return the tensor and assign it outside"
        )


def noting(method: Callable, note: Callable[..., None]) -> Callable:
    """A method that notes its arguments."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        note(*args, *kwargs.values())
        return method(*args, **kwargs)

    return call
