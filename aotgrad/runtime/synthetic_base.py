"""The memory of overlapping arguments as one flat tensor, at run time; gradients go to the base of the arguments."""

from __future__ import annotations

from typing import Any

import torch

from aotgrad import torch_compat


def synthetic_base(member: torch.Tensor, start_bytes: int, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    """`nbytes` of the storage of `member`, from `start_bytes` after its first byte, as a flat tensor of `dtype`."""
    first = member.storage_offset() * member.element_size() + start_bytes
    return torch_compat.flat_alias(member, first, nbytes, dtype)


def memory_alias(member: torch.Tensor, start_bytes: int, numel: int) -> torch.Tensor:
    """The memory around `member` as a flat tensor with its dtype and its version counter."""
    first = member.storage_offset() + start_bytes // member.element_size()
    return torch_compat.strided_alias(member, (numel,), (1,), first)


def attached_base(root: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """`base` as a differentiable function of `root`, which lies within it and has its dtype."""
    with torch.enable_grad():
        return Flattened.apply(root, (base,))


class Flattened(torch.autograd.Function):
    """From a strided tensor to the flat memory around it. The memory is in a tuple, so autograd does not see it as input."""

    @staticmethod
    def forward(ctx: Any, root: torch.Tensor, bases: tuple[torch.Tensor]) -> torch.Tensor:
        (base,) = bases
        ctx.set_materialize_grads(False)
        ctx.geometry = (root.size(), root.stride(), (root.data_ptr() - base.data_ptr()) // root.element_size())
        return base

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        return (None if gradient is None else gradient.as_strided(*ctx.geometry)), None
