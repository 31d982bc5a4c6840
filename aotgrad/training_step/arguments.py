"""The arguments of a traced step: the tensors of its state, gradients, numbers, then the user's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad.plan_cache.arguments import Arguments
from aotgrad.training_step.state import Snapshot


@dataclass(frozen=True)
class StepArguments(Arguments):
    """The user's arguments after the tensors of a state, the gradients that there are, and its numbers as one tensor.

    `count`: of the state's tensors. `has_gradient`: for each of them.
    """

    count: int
    has_gradient: tuple[bool, ...]

    @classmethod
    def after(cls, found: Snapshot, args: tuple, kwargs: dict[str, Any]) -> StepArguments:
        inner = Arguments.of(args, kwargs)
        gradients = [gradient for gradient in found.gradients if gradient is not None]
        tensors = (*found.tensors, *gradients, found.numbers.pack(), *inner.tensors)
        return cls(args, kwargs, tensors, inner.constants, inner.spec, len(found.tensors), found.has_gradient)

    def rebuild(self, tensors: Sequence[Any]) -> tuple[tuple, dict[str, Any]]:
        """What `TracedStep` takes."""
        rest = iter(tensors)
        state: list[torch.Tensor] = [next(rest) for _ in range(self.count)]
        gradients = [next(rest) if has else None for has in self.has_gradient]
        numbers = next(rest)
        args, kwargs = super().rebuild(list(rest))
        return (state, gradients, numbers, args, kwargs), {}
