"""What a Python frame of torch calls or differentiates, for the frames of an error."""

from __future__ import annotations

from types import FrameType

import torch
from torch._ops import OpOverload

_BACKWARD = torch.autograd.function.BackwardCFunction.apply.__code__
_APPLY = torch.autograd.Function.apply.__func__.__code__  # pyright: ignore[reportFunctionMemberAccess]
_CALL = OpOverload.__call__.__code__


def differentiated_in(frame: FrameType) -> type | None:
    """The autograd function whose backward a frame runs."""
    return frame.f_locals["self"]._forward_cls if frame.f_code is _BACKWARD else None


def called_in(frame: FrameType) -> type | OpOverload | None:
    """The autograd function or op that a frame calls."""
    if frame.f_code is _APPLY:
        return frame.f_locals["cls"]
    return frame.f_locals["self"] if frame.f_code is _CALL else None


def op_of_formula(function: type) -> OpOverload | None:
    """The custom op for whose `register_autograd` torch has made an autograd function; `None` for other functions."""
    forward = getattr(vars(function).get("forward"), "__func__", None)
    names = getattr(forward, "__code__", _CALL).co_freevars
    if forward is None or not function.__name__.startswith("GeneratedBackwardFor_"):
        return None
    return forward.__closure__[names.index("op")].cell_contents if "op" in names else None
