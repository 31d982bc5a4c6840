"""A module's parameters and buffers as arguments of its forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.fx as fx
from torch import nn

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.torch_compat import fx_traceback

PLAIN_TYPES = frozenset({bool, int, float, str, type(None)})
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def plain_state(module: nn.Module) -> tuple:
    attributes = module.__dict__
    values = tuple(value for value in attributes.values() if type(value) in PLAIN_TYPES)
    hooks = tuple(id(hook) for name in HOOKS for hook in attributes[name].values())
    return (id(module), values, hooks)


class LiftedModule:
    """`forward(tensors, *args)` runs the module with its parameters and buffers replaced by `tensors`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters, then buffers, each tensor once under its first name."""
        return {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}

    def state_key(self) -> tuple:
        """What of the module's Python state changes the trace: plain attributes (`training`, `p`, ...) and hooks."""
        return tuple(plain_state(module) for module in self.module.modules())

    def forward(self, tensors: Mapping[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        with torch_compat.reparametrized(self.module, tensors):
            result = self.run(*args, **kwargs)
            self.check_not_reassigned(tensors)
        return result

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """A graph module is interpreted, so that the nodes recorded keep its stack traces."""
        if isinstance(self.module, fx.GraphModule):
            with fx_traceback.preserve_node_meta():
                return fx.Interpreter(self.module).run(*args)
        return type(self.module).forward(self.module, *args, **kwargs)

    def check_not_reassigned(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """A buffer that was bound to a new tensor would be lost: only in-place changes reach the caller.

        Raises:
            CaptureError: names the parameter or buffer.
        """
        for name, tensor in tensors.items():
            owner, _, attribute = name.rpartition(".")
            if getattr(self.module.get_submodule(owner), attribute) is not tensor:
                raise CaptureError(
                    f"the forward assigns a new tensor to {name!r}; a compiled module can only change it in place: "
                    f"self.{attribute}.copy_(...)"
                )
