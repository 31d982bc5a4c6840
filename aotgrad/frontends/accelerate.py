"""Lets `accelerate` accept our backends. Its list of names is closed: an enumeration.

    undo = accept_our_names()
    TrainingArguments(torch_compile_backend="aotgrad")

This imports nothing: if the module is not imported yet, the extension waits for its import.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE, ENUMERATION = "accelerate.utils.dataclasses", "DynamoBackend"
OUR_NAMES = ("AOTGRAD", "AOTGRAD_EAGER")
MISSING = "_missing_"
"""The method that an enumeration calls for an unknown value."""


def accept_our_names() -> Callable[[], None]:
    """Add `OUR_NAMES` to the list, now or when it is imported. Returns a function that undoes it."""
    watch = ImportWatch()
    module = sys.modules.get(MODULE)
    if module is None:
        sys.meta_path.insert(0, watch)
    else:
        watch.extend_list(module)
    return watch.stop


class ImportWatch:
    """An import hook that finds no module itself: it extends the list when the module of the list has run."""

    def __init__(self) -> None:
        self.undo: Callable[[], None] = lambda: None
        self.is_stopped = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path) if finder is not self)
        spec = next((spec for spec in specs if spec is not None), None)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            run = loader.exec_module
            loader.exec_module = lambda module: (run(module), self.extend_list(module))[0]
        return spec

    def extend_list(self, module: ModuleType) -> None:
        names = getattr(module, ENUMERATION, None)
        if isinstance(names, enum.EnumMeta) and not self.is_stopped:
            self.undo = extend_enumeration(names)

    def stop(self) -> None:
        self.is_stopped = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self.undo()


def extend_enumeration(names: Any) -> Callable[[], None]:
    """Let an enumeration of strings accept `OUR_NAMES`, too. Returns a function that undoes it."""
    members = {name: member_of(names, name) for name in OUR_NAMES}
    own, before = vars(names).get(MISSING), getattr(names, MISSING)

    def find(cls: Any, value: Any) -> Any:
        return members.get(value) or before(value)

    ours = classmethod(find)
    setattr(names, MISSING, ours)
    for name, member in members.items():  # Python 3.11.0 to 3.11.3 unpickles them by attribute
        setattr(names, name, member)

    def undo() -> None:
        for name in members.keys() & vars(names).keys():
            delattr(names, name)
        if vars(names).get(MISSING) is not ours:
            return  # other code has changed it since
        if own is None:
            delattr(names, MISSING)
        else:
            setattr(names, MISSING, own)

    return undo


def member_of(names: Any, value: str) -> Any:
    member = str.__new__(names, value)
    vars(member).update(_name_=value, _value_=value)
    return member
