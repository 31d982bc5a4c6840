"""Conditions on the values of tensors that a plan holds under: its function branches on them, or returns what they decide.

Before a plan runs, a graph computes from the arguments what the trace read, and each question of the trace is asked again:

    values: u0 > 3 is True, asked at example.py:12: if loss.item() > 3:

The graph is a part of the traced one. It has no effects, so nothing of the caller's has changed when the answers differ.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import torch_compat


class Level(enum.IntEnum):
    """How much is answered. A function is traced at the first level at which that succeeds."""

    NONE = 0
    """A question about a value is an error; numbers are symbolic."""
    GUARD = 1
    """Questions are answered; numbers are symbolic."""
    SPECIALIZE = 2
    """Numbers are what they are in this call, too."""


@dataclass(frozen=True)
class Condition:
    """`text`, an expression in what the graph computes, has to give `wanted`; `place` says where that was asked."""

    text: str
    wanted: Any
    place: str

    def __str__(self) -> str:
        return f"{self.text} is {self.wanted!r}, asked {self.place}"


@dataclass(frozen=True)
class ValueGuard:
    """What a plan assumes of values.

    Attributes:
        level: how much the trace was told.
        compute: takes the distinct tensors of a call, returns what the conditions are about.
        names: of what it returns.
        inputs: the positions of the tensors whose values it needs.
        conditions: all have to hold.
        draws: whether random numbers are drawn; the call draws the same ones again.
    """

    level: Level
    compute: Callable[..., tuple]
    names: tuple[str, ...]
    inputs: tuple[int, ...]
    conditions: tuple[Condition, ...]
    draws: bool

    def __call__(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether all conditions hold. An error of an op is none of ours: the function itself raises it then."""
        return self.failing(tensors) is None

    def failing(self, tensors: Sequence[torch.Tensor]) -> str | None:
        """The first condition that does not hold, for people; `None` if all do."""
        try:
            draw = torch_compat.RandomReplay() if self.draws else contextlib.nullcontext
            with torch_compat.below_autograd(), torch_compat.disable_autocast(), draw():
                found = dict(zip(self.names, self.compute(*tensors), strict=True))
        except Exception as error:
            return f"computing them raises {type(error).__name__}: {error}"
        for condition in self.conditions:
            value = evaluate(condition.text, found)
            if not is_same(value, condition.wanted):
                return f"{condition.text} is {value!r}, not {condition.wanted!r}, asked {condition.place}"
        return None

    def lines(self) -> Iterator[str]:
        return (f"values: {condition}" for condition in self.conditions)


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The value of a condition's expression."""
    return eval(torch_compat.compiled_text(text), torch_compat.text_namespace(), dict(names))


def is_same(value: Any, wanted: Any) -> bool:
    """Whether two answers are one: a NaN is one with itself, `1`, `True`, `1.0`, and `0.0` and `-0.0`, are not.

    >>> is_same(float("nan"), float("nan")), is_same(1, True), is_same(0.0, -0.0)
    (True, False, False)
    """
    return type(value) is type(wanted) and repr(value) == repr(wanted)
