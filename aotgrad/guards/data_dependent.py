"""Guards on the values of tensors: the function branches on them, or its results depend on numbers read from them.

Before a plan runs, a graph computes the values that the trace read, and the guard checks each answer that the trace got:

    values: u0 > 3 is True, asked at example.py:12: if loss.item() > 3:

The graph is a part of the traced graph. It has no effects, so the caller's tensors are unchanged if an answer differs. It
can return more values, which the plan then takes as inputs.
"""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import torch_compat

NO_DRAWS = contextlib.nullcontext()


class Level(enum.IntEnum):
    """How much a trace is told about values. A function is traced at the first level that succeeds."""

    NONE = 0
    """A question about a value is an error; numbers are symbolic."""
    GUARD = 1
    """Questions are answered and guarded; numbers are symbolic."""
    SPECIALIZE = 2
    """Numbers are specialized to this call, too."""


@dataclass(frozen=True)
class Condition:
    """`text`, an expression in the values that the graph computes, must give `wanted`; `place` is where it was asked."""

    text: str
    wanted: Any
    place: str

    def __str__(self) -> str:
        return f"{self.text} is {self.wanted!r}, asked {self.place}"


@dataclass(frozen=True)
class ValueGuard:
    """The conditions of a plan on values.

    Attributes:
        level: how much the trace was told.
        compute: takes the distinct tensors of a call; returns the values that the conditions use, then those for the plan.
        names: the names of the former.
        inputs: the positions of the tensors whose values it reads.
        conditions: all must hold.
        draws: whether it draws random numbers; a plan that takes no values draws the same ones.
    """

    level: Level
    compute: Callable[..., tuple]
    names: tuple[str, ...]
    inputs: tuple[int, ...]
    conditions: tuple[Condition, ...]
    draws: bool

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor] | bool:
        """Whether all conditions hold; if they do, the values for the plan, if there are some.

        If an op raises, they do not hold: the function itself will raise.
        """
        reason, values = self.answer(tensors, counts=True)
        return reason is None and (values or True)

    def failing(self, tensors: Sequence[torch.Tensor]) -> str | None:
        """The first condition that does not hold, as text; `None` if all do."""
        return self.answer(tensors, counts=False)[0]

    def answer(self, tensors: Sequence[torch.Tensor], counts: bool) -> tuple[str | None, Sequence[torch.Tensor]]:
        """The first condition that does not hold, and the values for the plan.

        Args:
            counts: whether what was drawn for these values counts as drawn.
        """
        replay = torch_compat.RandomReplay() if self.draws else None
        try:
            draws = replay() if replay else NO_DRAWS
            with torch_compat.below_autograd(), torch_compat.disable_autocast(), torch.enable_grad(), draws:
                results = self.compute(*tensors)
        except Exception as error:
            return f"computing them raises {type(error).__name__}: {error}", ()
        answers, values = results[: len(self.names)], results[len(self.names) :]
        if self.hold(*answers):
            if counts and values and replay is not None:
                replay.advance()
            return None, values
        found = dict(zip(self.names, answers, strict=True))
        failing = next(each for each in self.conditions if not is_same(evaluate(each.text, found), each.wanted))
        value = evaluate(failing.text, found)
        return f"{failing.text} is {value!r}, not {failing.wanted!r}, asked {failing.place}", ()

    @functools.cached_property
    def hold(self) -> Callable[..., bool]:
        """One function of the values that checks all conditions."""
        names = {f"wanted_{k}": condition.wanted for k, condition in enumerate(self.conditions)}
        checks = [
            f"({each.text}) is {each.wanted}" if type(each.wanted) is bool else f"is_same({each.text}, wanted_{k})"
            for k, each in enumerate(self.conditions)
        ]
        text = f"lambda {', '.join(self.names)}: {' and '.join(checks) or True}"
        return eval(text, {**torch_compat.text_namespace(), **names, "is_same": is_same})

    def lines(self) -> Iterator[str]:
        return (f"values: {condition}" for condition in self.conditions)


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The value of a condition's expression."""
    return eval(torch_compat.compiled_text(text), torch_compat.text_namespace(), dict(names))


def is_same(value: Any, wanted: Any) -> bool:
    """Whether two answers are the same: a NaN equals itself; `1`, `True` and `1.0` differ, and so do `0.0` and `-0.0`.

    >>> is_same(float("nan"), float("nan")), is_same(1, True), is_same(0.0, -0.0)
    (True, False, False)
    """
    return type(value) is type(wanted) and repr(value) == repr(wanted)
