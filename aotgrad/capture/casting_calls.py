"""Calls that reach kernels which call ops of autocast; a trace would run those kernels without casts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from aotgrad import torch_compat


class CastingCalls:
    """A handler that runs such calls within `noting_autocast()`."""

    functions = torch_compat.CASTING_FUNCTIONS

    def __init__(self, noting_autocast: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._noting_autocast = noting_autocast

    def handle(self, _: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        with self._noting_autocast():
            return call(*args, **kwargs)
