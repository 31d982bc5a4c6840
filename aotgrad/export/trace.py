"""The joint graph of a function, without compiling it: for budgets and export.

In: a function or module, and the arguments of a call. Out: a `CachedPlan` whose executable is a `TracedJoint`: the stages up
to the joint graph, with the guards and the structure of the result.
"""

from __future__ import annotations

from typing import Any

from aotgrad.errors import CaptureError, ExportError
from aotgrad.pipeline import TracedJoint
from aotgrad.plan_cache.assigned_state import AssignedResult, copy_to_assigned
from aotgrad.plan_cache.binding import BoundFunction
from aotgrad.plan_cache.entry import CachedPlan, NoPlan


def joint_plan(bound: BoundFunction, args: tuple, kwargs: dict[str, Any]) -> tuple[CachedPlan, TracedJoint]:
    """The stages up to the joint graph of one call; the compiler of `bound` comes from `make_tracer`.

    Raises:
        CaptureError: the function cannot be compiled, because it runs under a transform or the option `enabled` is off.
        Exception: the function itself raises it.
    """
    plan = bound.plan_for(*args, **kwargs)
    if isinstance(plan, NoPlan):
        raise plan.error or CaptureError(f"the function is not traced: {plan.reason}")
    assert isinstance(plan.executable, TracedJoint), "no graph is too small"
    return plan, plan.executable


def exported_plan(bound: BoundFunction, args: tuple, kwargs: dict[str, Any]) -> tuple[CachedPlan, TracedJoint]:
    """The same for a graph that is exported: nobody would assign buffers that it has computed.

    Raises:
        ExportError: the function is a module that assigns buffers.
        CaptureError, Exception: see `joint_plan`.
    """
    plan, traced = joint_plan(bound, args, kwargs)
    spec = plan.output.spec
    if spec is not None and spec.type is AssignedResult:
        name = spec.context[0]
        raise ExportError(
            f"the forward assigns a new tensor to {name!r}, which an exported graph cannot; change it in place: "
            f"{copy_to_assigned(name)}"
        )
    return plan, traced
