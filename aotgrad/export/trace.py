"""The joint graph of a function, without anything compiled: for budgets and export.

In: a function or module and the arguments of a call. Out: a `CachedPlan` whose executable is a `TracedJoint`: the stages so
far, with the guards and the structure of the result.
"""

from __future__ import annotations

from typing import Any

from aotgrad.errors import CaptureError
from aotgrad.pipeline import TracedJoint
from aotgrad.plan_cache.binding import BoundFunction
from aotgrad.plan_cache.entry import CachedPlan, NoPlan


def joint_plan(calls: BoundFunction, args: tuple, kwargs: dict[str, Any]) -> tuple[CachedPlan, TracedJoint]:
    """The stages up to the joint graph of one call; `calls` are made with `make_tracer`.

    Raises:
        CaptureError: the function is not compiled at all, since it runs under a transform or the option `enabled` is off.
        Exception: what the function raises by itself.
    """
    plan = calls.plan_for(*args, **kwargs)
    if isinstance(plan, NoPlan):
        raise plan.error or CaptureError(f"the function is not traced: {plan.reason}")
    assert isinstance(plan.executable, TracedJoint), "no graph is too small"
    return plan, plan.executable
