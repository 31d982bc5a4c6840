"""Decompositions that Inductor gets in place of torch's."""

from __future__ import annotations

from typing import Any

import torch

from aotgrad import torch_compat

MEAN, SUM = 1, 2
"""The reductions of a loss, as ATen numbers them."""


def multilabel_margin_loss_forward(
    input: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and a mask of the target classes."""
    scores, goals = torch.atleast_2d(input), torch.atleast_2d(target)
    if scores.size(1) == 0:
        raise RuntimeError("a row has no classes")
    is_before_end = (goals == -1).cumsum(1) == 0
    goals = torch.where(is_before_end, goals, 0)
    is_target = torch.zeros_like(scores).scatter_reduce(1, goals, is_before_end.to(scores.dtype), "amax")
    margins = 1 - scores.gather(1, goals)[:, :, None] + scores[:, None, :]
    is_counted = is_before_end[:, :, None] & (is_target == 0)[:, None, :] & (margins > 0)
    losses = torch.where(is_counted, margins, 0).sum((1, 2)) / scores.size(1)
    return reduce_losses(losses, reduction, input.dim() < 2), is_target.view(target.size())


def reduce_losses(losses: torch.Tensor, reduction: int, is_one: bool) -> torch.Tensor:
    """The mean, the sum, or the losses themselves. `is_one`: there is a single loss, which is summed."""
    if reduction == MEAN:
        return losses.mean()
    return losses.sum() if reduction == SUM or is_one else losses


def scatter_in_one_dimension(
    op: torch._ops.OpOverload, input: torch.Tensor, dim: int, index: torch.Tensor, value: Any, *args: Any, **kwargs: Any
) -> Any:
    """Operands without dimensions as vectors of one element; others are not decomposed."""
    if input.dim() and index.dim():
        return NotImplemented
    target, index, value = (as_vector(each) if isinstance(each, torch.Tensor) else each for each in (input, index, value))
    return op(target, dim, index, value, *args, **kwargs).view(input.size())


def as_vector(tensor: torch.Tensor) -> torch.Tensor:
    """A view with one dimension of a tensor without any, others as they are."""
    return tensor if tensor.dim() else tensor.view(1)


def cumsum(input: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """A copy of a tensor without dimensions; others are not decomposed."""
    if input.dim():
        return NotImplemented
    summed = torch_compat.run_shape_function(torch.ops.aten.cumsum.default, input, dim, dtype=dtype)
    return input.to(summed.dtype, copy=True)
