"""Decompositions in place of those that Inductor would use and that compute something else than the op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

MEAN, SUM = 1, 2
"""The reductions of a loss, as ATen numbers them."""


def multilabel_margin_loss_forward(
    input: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and which classes are targets. A row of `target` ends at its first -1; torch's decomposition reads on."""
    scores, goals = torch.atleast_2d(input), torch.atleast_2d(target)
    is_before_end = (goals == -1).cumsum(1) == 0
    goals = torch.where(is_before_end, goals, 0)
    is_target = torch.zeros_like(scores).scatter_reduce(1, goals, is_before_end.to(scores.dtype), "amax")
    margins = 1 - scores.gather(1, goals)[:, :, None] + scores[:, None, :]
    is_counted = is_before_end[:, :, None] & (is_target == 0)[:, None, :] & (margins > 0)
    losses = torch.where(is_counted, margins, 0).sum((1, 2)) / scores.size(1)
    return reduced(losses, reduction, input.dim() < 2), is_target.view(target.size())


def reduced(losses: torch.Tensor, reduction: int, is_one: bool) -> torch.Tensor:
    """`is_one`: there is one loss, so nothing is left to choose."""
    if reduction == MEAN:
        return losses.mean()
    return losses.sum() if reduction == SUM or is_one else losses


CORRECTED: Mapping[Any, Callable] = {torch.ops.aten.multilabel_margin_loss_forward.default: multilabel_margin_loss_forward}
