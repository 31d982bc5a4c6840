"""The settings of torch's compilers: Inductor, Dynamo, and what fake tensors and symbolic sizes read.

settings = CompilerSettings.now()
with settings.active():            in another thread, or later
    ...
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._config_module import _UNSET_SENTINEL

from aotgrad.torch_compat.contexts import disable_autocast
from aotgrad.torch_compat.random import kept_random_states

CONFIG_MODULES = (
    "torch._inductor.config",
    "torch._dynamo.config",
    "torch._functorch.config",
    "torch.fx.experimental._config",
    "torch.compiler.config",
)
"""Modules of settings. Those that are not imported have their defaults."""


@dataclass(frozen=True)
class CompilerSettings:
    """The settings that a program has changed, by module and name. Since torch 2.12 each thread has its own."""

    changed: Mapping[str, Mapping[str, Any]]

    @classmethod
    def now(cls) -> CompilerSettings:
        return cls({module: _changed_settings(module) for module in CONFIG_MODULES if module in sys.modules})

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside, this thread has these settings."""
        with contextlib.ExitStack() as stack:
            for name in filter(sys.modules.__contains__, CONFIG_MODULES):
                if differing := _differing(name, self.changed.get(name, {})):
                    stack.callback(sys.modules[name]._make_closure_patcher(**differing)())
            yield


def is_engine_thread() -> bool:
    """Whether autograd's engine started this thread, for a device: nothing is set there."""
    return torch._C._current_graph_task_id() != -1 and isinstance(threading.current_thread(), threading._DummyThread)


def _changed_settings(module: str) -> dict[str, Any]:
    entries = sys.modules[module]._config.items()
    overrides = ((name, entry, _override(entry)) for name, entry in entries)
    return {name: value for name, entry, value in overrides if value is not _UNSET_SENTINEL and not _is_copy(value, entry)}


def _differing(module: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a module that are not as wanted, with what to override them by."""
    now = _changed_settings(module)
    both = {name: [each.get(name, _UNSET_SENTINEL) for each in (now, wanted)] for name in now.keys() | wanted.keys()}
    return {name: new for name, (old, new) in both.items() if old is not new and bool(old != new)}


def _override(entry: Any) -> Any:
    found = entry.user_override
    return found.get() if isinstance(found, ContextVar) else found


def _is_copy(value: Any, entry: Any) -> bool:
    """Whether an override is torch's own copy of a default that could be changed in place."""
    return isinstance(value, (list, dict, set)) and value == entry.default


@contextlib.contextmanager
def compiler_context() -> Iterator[None]:
    """Inside, a compiler works for a function: autocast is off, since the graph has its casts, and no generator moves.

    Inductor draws inputs for kernels that it times: `pad_mm` in a pass of the joint graph.
    """
    with disable_autocast(), kept_random_states():
        yield
