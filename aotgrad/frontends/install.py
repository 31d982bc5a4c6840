"""Lets "inductor" mean aotgrad, for programs that cannot name another backend.

    aotgrad.install()
    torch.compile(model)                        aotgrad, with Inductor compiling the halves
    torch.compile(model, mode="max-autotune")   the same, with Inductor configured for that mode
    aotgrad.uninstall()                         restores "inductor"

    with aotgrad.install(options={"memory_budget": 0.5}):
        model = torch.compile(model)            stays aotgrad's, also outside

The meaning of "inductor" is fixed when `torch.compile` is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.frontends import accelerate
from aotgrad.frontends.dynamo import DynamoBackend


class Installation:
    """One `install()`. As a context manager, it is undone at the end."""

    def __init__(self, options: Mapping[str, Any] | None) -> None:
        self.backend = DynamoBackend("inductor", options)
        self.inductor = dict((options or {}).get("inductor", ()))

    def __call__(self, module: fx.GraphModule, example_inputs: Sequence[Any], settings: Mapping[str, Any]) -> Callable:
        return self.backend(module, example_inputs, {"inductor": {**self.inductor, **settings}})

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, *_: object) -> None:
        _installations.remove(self)


class Installations:
    """The active installations, for all threads. The last one decides what "inductor" means; without any, it is Inductor."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.active: list[Installation] = []
        self.undo: list[Callable[[], None]] = []

    def add(self, installation: Installation) -> None:
        with self.lock:
            self.active.append(installation)
            if not self.undo:
                self.undo = [torch_compat.take_inductors_name(self.last), accelerate.accept_our_names()]

    def remove(self, installation: Installation | None = None) -> bool:
        """Remove an installation, by default the last one. False if it is no longer active."""
        with self.lock:
            found = installation in self.active if installation else bool(self.active)
            if found:
                self.active.remove(installation or self.active[-1])
            while self.undo and not self.active:
                self.undo.pop()()
            return found

    def last(self) -> Installation:
        return self.active[-1]


_installations = Installations()


def install(options: Mapping[str, Any] | None = None) -> Installation:
    """From now on, in all threads, `torch.compile(model)` and `backend="inductor"` mean aotgrad.

    `mode`, `options`, `dynamic` and `fullgraph` are passed as for Inductor. `accelerate`, and libraries on top of it, accept
    the names "aotgrad" and "aotgrad_eager", whether `accelerate` is imported before or after.

    Args:
        options: see `aotgrad.Options`; for everything that is compiled through this installation.

    Returns:
        A context manager that undoes it; so does `uninstall()`. Installations may be nested: the last one counts.

    Raises:
        OptionError: for an unknown option or a bad value.
    """
    installation = Installation(options)
    _installations.add(installation)
    return installation


def uninstall() -> bool:
    """Undo the last `install()`. Compiled functions stay as they are.

    Returns:
        Whether there was an installation.
    """
    return _installations.remove()
