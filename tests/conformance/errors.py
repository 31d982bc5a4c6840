"""What eager refuses: the inputs of torch's own databases on which an operator has to raise.

    for call in refused_calls():
        result = outcome(aotgrad.aot_function(call.function), call)

A compiled operator raises there, too: eager's type of error, or an error of aotgrad's that says what it does not compile.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations

from aotgrad.errors import AOTGradError


@dataclass(frozen=True)
class RefusedCall:
    """An operator and arguments for which eager raises `error`."""

    name: str
    function: Callable
    arguments: tuple
    error: Exception

    def __str__(self) -> str:
        shapes = [tuple(each.shape) if isinstance(each, torch.Tensor) else each for each in self.arguments]
        return f"{self.name} of {shapes}, for which eager raises {type(self.error).__name__}: {str(self.error)[:100]}"


@functools.cache
def refused_calls() -> tuple[RefusedCall, ...]:
    """All of them, but for those that eager's call lets pass: torch checks these in another way."""
    return tuple(_refused_calls())


def _refused_calls() -> Iterator[RefusedCall]:
    for info in common_methods_invocations.op_db:
        if info.error_inputs_func is None:
            continue
        for each in info.error_inputs("cpu"):
            sample = each.sample_input
            function, arguments = called_with(info.op, sample.kwargs), (sample.input, *sample.args)
            error = outcome(function, arguments)
            if isinstance(error, Exception):
                yield RefusedCall(info.formatted_name, function, arguments, error)


def called_with(op: Callable, settings: dict[str, Any]) -> Callable:
    """An operator with keyword arguments, as a function that can be compiled."""

    def function(*arguments: Any) -> Any:
        return op(*arguments, **settings)

    return function


def outcome(function: Callable, arguments: tuple) -> Any:
    """What a call returns, or the exception that it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*arguments)
        except Exception as error:
            return error


def is_refused(found: Any, error: Exception) -> bool:
    """Whether an outcome is an error like eager's, or one that says what is not compiled."""
    return isinstance(found, (AOTGradError, type(error)))
