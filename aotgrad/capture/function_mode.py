"""One function mode for a trace: a table from torch functions to the handlers of their calls.

    with FunctionHandlers([ReshapedViews(...), HookRecords(...)]):
        x.unsqueeze_(0)                    ReshapedViews.handle(torch.Tensor.unsqueeze_, call, x, 0)
        x.sin()                            no handler takes it

With nested modes instead, every call, and every property that a mode reads, would pass through each mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from torch.overrides import TorchFunctionMode

from aotgrad import torch_compat


class Handler(Protocol):
    """Handles calls of some functions, or of all of them."""

    @property
    def functions(self) -> Collection[Any] | None:
        """The functions whose calls it handles; `None`: all."""

    def handle(self, function: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The result of a call of `function`. `call` runs the remaining handlers and then `function` itself."""


class FunctionHandlers(TorchFunctionMode):
    """Lets each call of a torch function pass through the handlers that take it, the last of `handlers` first.

    `opened`: functions in Python that run in the mode, so that it gets the calls that they make.
    """

    def __init__(self, handlers: Sequence[Handler], opened: Collection[Any] = ()) -> None:
        super().__init__()
        self.opened = opened
        named = {function for handler in handlers for function in handler.functions or ()}
        self.for_all = [handler for handler in handlers if handler.functions is None]
        self.table = {
            function: [each for each in handlers if each.functions is None or function in each.functions]
            for function in named
        }

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in self.opened:
            with self:
                return torch_compat.without_override_check(function)(*args, **(kwargs or {}))
        call, keywords = function, dict(kwargs or {})
        if function in self.table and "input" in keywords:
            args = (keywords.pop("input"),)  # its handlers expect the first argument as eager's methods pass it
        for handler in self.table.get(function, self.for_all):
            call = functools.partial(handler.handle, function, call)
        return call(*args, **keywords)
