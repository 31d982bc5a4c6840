"""Inputs that eager refuses: those of torch's own databases on which an operator must raise.

    for call in refused_calls():
        result = outcome(aotgrad.aot_function(call.function), call)

A compiled operator raises there, too: eager's type of error, or an aotgrad error that names what it does not compile.
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
from tests.device import TYPE


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
    """All refused calls, except those that eager's call accepts: torch checks these in another way."""
    return tuple(_refused_calls())


def _refused_calls() -> Iterator[RefusedCall]:
    for info in common_methods_invocations.op_db:
        if info.error_inputs_func is None:
            continue
        for each in info.error_inputs(TYPE):
            sample = each.sample_input
            function, arguments = called_with(info.op, sample.kwargs), (sample.input, *sample.args)
            error = outcome(function, arguments)
            if isinstance(error, Exception):
                yield RefusedCall(info.formatted_name, function, arguments, error)


def called_with(op: Callable, settings: dict[str, Any]) -> Callable:
    """An operator with keyword arguments, as a compilable function."""

    def function(*arguments: Any) -> Any:
        return op(*arguments, **settings)

    return function


def outcome(function: Callable, arguments: tuple) -> Any:
    """The result of a call, or its exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*arguments)
        except Exception as error:
            return error


def is_refused(found: Any, error: Exception) -> bool:
    """Whether an outcome is an error like eager's, or one that names what is not compiled."""
    return isinstance(found, (AOTGradError, type(error)))
