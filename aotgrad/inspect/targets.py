"""The function and the inputs that a command line names.

    model.py:loss                     a function of a file, which may be dotted: `model.py:Net.step`
    torch.nn.functional:gelu          a function of an importable module
    model.py:Net                      a module instance, or a module class whose constructor needs no arguments

Inputs are those of `--inputs` (see `inspect.specs`), or the result of `example_inputs()`, a function of the file or an
attribute of the function.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from aotgrad.inspect.specs import parse_arguments


class UsageError(Exception):
    """A wrong command line; the message says what is possible."""


@dataclass(frozen=True)
class Target:
    """A function or module and what to call it with."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]

    @classmethod
    def of(cls, text: str, specs: Sequence[str] | None) -> Target:
        """The target `place:name`, with the inputs of `specs`, or its own.

        Raises:
            UsageError: there is no such function.
            SpecError: a text describes no input.
        """
        function, module = find_function(text)
        return cls(function, inputs_for(function, module, specs))


def load_module(name: str) -> ModuleType:
    """The module of a Python file or of an importable name."""
    if not name.endswith(".py"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(f"there is no module {name!r}; for a file write its path, with .py: {error}") from error
    path = Path(name)
    if not path.is_file():
        raise UsageError(f"there is no file {name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "a Python file can be loaded"
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def find_function(target: str) -> tuple[Callable[..., Any], ModuleType]:
    """The callable that `module:name` or `file.py:name` means, and its module."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise UsageError(f"{target!r} names no function; write file.py:function or module:function")
    module = load_module(place)
    try:
        function = functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        own = ", ".join(functions_of(module)) or "none"
        raise UsageError(f"{place} has no {name!r}; its functions are {own}") from None
    if isinstance(function, type) and issubclass(function, nn.Module):
        function = instance_of(target, function)
    if not callable(function):
        raise UsageError(f"{target} is a {type(function).__name__}, which cannot be called")
    return function, module


def instance_of(target: str, kind: Any) -> nn.Module:
    """An instance of a module class."""
    try:
        return kind()
    except TypeError as error:
        raise UsageError(f"{target} is a class that needs arguments ({error}); name an instance of it") from error


def functions_of(module: ModuleType) -> list[str]:
    own = inspect.getmembers(module, inspect.isfunction)
    return [name for name, function in own if function.__module__ == module.__name__]


def inputs_for(function: Callable[..., Any], module: ModuleType, specs: Sequence[str] | None) -> tuple[Any, ...]:
    """The arguments of the command line, or the result of `example_inputs()`."""
    if specs is not None:
        return parse_arguments(specs)
    example = getattr(function, "example_inputs", None) or getattr(module, "example_inputs", None)
    if example is None:
        raise UsageError('describe its inputs with --inputs "f32[3, 4] requires_grad" ..., or define example_inputs() there')
    inputs = example()
    return tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)
