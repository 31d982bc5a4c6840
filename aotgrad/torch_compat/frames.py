"""What a Python frame of torch calls or differentiates, for the frames of an error."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch._ops import OpOverload

_BACKWARD = torch.autograd.function.BackwardCFunction.apply.__code__
_CALL = OpOverload.__call__.__code__


def differentiated_in(frame: FrameType) -> type | None:
    """The autograd function whose backward a frame runs."""
    return frame.f_locals["self"]._forward_cls if frame.f_code is _BACKWARD else None


def called_in(frame: FrameType) -> type | OpOverload | None:
    """The op that a frame calls, or the autograd function whose forward it runs; newer versions of torch apply it in C++."""
    code = frame.f_code
    if code is _CALL:
        return frame.f_locals["self"]
    function = getattr(type(frame.f_locals.get(next(iter(code.co_varnames), ""))), "_forward_cls", None)
    if function is not None:
        return function if code in _codes_of(function) else None
    return next((each for each in _subclasses(torch.autograd.Function) if code in _codes_of(each)), None)


def _codes_of(function: Any) -> Iterator[CodeType]:
    """What runs when a user's autograd function is applied."""
    for name in ("forward", "setup_context"):
        method = vars(function).get(name)
        code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None)
        if code is not None:
            yield code


def _subclasses(cls: type) -> Iterator[type]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def op_of_formula(function: type) -> OpOverload | None:
    """The custom op for whose `register_autograd` torch has made an autograd function; `None` for other functions."""
    forward = getattr(vars(function).get("forward"), "__func__", None)
    names = getattr(forward, "__code__", _CALL).co_freevars
    if forward is None or not function.__name__.startswith("GeneratedBackwardFor_"):
        return None
    return forward.__closure__[names.index("op")].cell_contents if "op" in names else None
