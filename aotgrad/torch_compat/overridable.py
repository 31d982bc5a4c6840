"""Functions of torch that are written in Python: which ones call others, and their code without the check for overrides.

Such a function runs in no `TorchFunctionMode`: the mode gets the whole call, and what the function calls is hidden from it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Collection
from typing import Any

import torch

_CHECKS = frozenset({"has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"})


def functions_calling(functions: Collection[Any]) -> set[Any]:
    """The functions of `torch.nn.functional` in Python that call one of these, by its name, and check for overrides."""
    names = {name for function in functions if (name := getattr(function, "__name__", None))}
    found = (each for each in vars(torch.nn.functional).values() if isinstance(each, types.FunctionType))
    return {each for each in found if _CHECKS & {*each.__code__.co_names} and names & {*each.__code__.co_names}}


@functools.cache
def without_override_check(function: types.FunctionType) -> Callable[..., Any]:
    """The function without its first step, which hands the call to a mode; what it calls reaches the mode."""
    names = {**function.__globals__, **dict.fromkeys(_CHECKS, lambda *_: False)}
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
