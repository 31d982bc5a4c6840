"""The joint graph of a function, without anything compiled: for budgets and export.

In: a function or module and the arguments of a call. Out: a `CachedPlan` whose executable is a `TracedJoint`: the stages so
far, with the guards and the structure of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aotgrad.capture.trace import FlatFunction
from aotgrad.capture.values import ValueReads
from aotgrad.errors import CaptureError
from aotgrad.ir import InputHint
from aotgrad.passes import KnownValues
from aotgrad.pipeline import SmallGraph, TracedJoint, trace_joint
from aotgrad.plan_cache.binding import BoundFunction
from aotgrad.plan_cache.compiler import Recipe
from aotgrad.plan_cache.entry import CachedPlan, NoPlan


@dataclass(frozen=True)
class JointRecipe(Recipe):
    """A recipe that stops at the joint graph, which has no guards to go with it. Its options say `min_graph_ops=0`."""

    @property
    def answers_values(self) -> bool:
        return False

    def compile(
        self,
        function: FlatFunction,
        args: Sequence[Any],
        hints: Sequence[InputHint],
        known: KnownValues | None = None,
        values: ValueReads | None = None,
    ) -> TracedJoint | SmallGraph:
        return trace_joint(function, args, hints, self.in_one_piece().toolchain(), known, values)


def joint_plan(calls: BoundFunction, args: tuple, kwargs: dict[str, Any]) -> tuple[CachedPlan, TracedJoint]:
    """The stages up to the joint graph of one call; `calls` are made with a `JointRecipe`.

    Raises:
        CaptureError: the function is not compiled at all, since it runs under a transform or the option `enabled` is off.
        Exception: what the function raises by itself.
    """
    plan = calls.plan_for(*args, **kwargs)
    if isinstance(plan, NoPlan):
        raise plan.error or CaptureError(f"the function is not traced: {plan.reason}")
    assert isinstance(plan.executable, TracedJoint), "no graph is too small"
    return plan, plan.executable
