"""The plan cache of a loaded function: a call that this process has no plan for finds one in the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.capture.trace import FlatFunction
from aotgrad.convention import Dedupe
from aotgrad.errors import NoPlanError
from aotgrad.pipeline import Compiler
from aotgrad.plan_cache.cache import Admitted, PlanCache
from aotgrad.plan_cache.call import Call
from aotgrad.plan_cache.compile import FlatCall
from aotgrad.plan_cache.lock import COMPILING
from aotgrad.shipping.key_form import NoForm, call_form, form_differences
from aotgrad.shipping.revive import Revived, revive


@dataclass
class FiledPlan:
    """A plan of a file: the form of the key of its calls, and its data, which is decoded when a call needs it.

    `tensors`: what the function has closed over, by attribute.
    """

    key: Mapping[str, Any]
    data: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    revived: Revived | None = None

    def ready(self, compiler: Compiler, function: Callable[[Dedupe], FlatFunction] | None) -> Revived:
        if self.revived is None:
            self.revived = revive(self.data, compiler, function, self.tensors)
        return self.revived

    def other_conditions(self, form: Mapping[str, Any]) -> list[str]:
        """How a call differs from those of the plan before its tensors are looked at; empty if it does not."""
        settings, now = self.data["settings"], torch_compat.named_settings()
        parts = (
            *((name, form[name], wanted) for name, wanted in self.key.items()),
            *((f"global state: {name}", now.get(name), wanted) for name, wanted in settings.items()),
        )
        return [f"{name}: {found}" for name, one, other in parts for found in form_differences(one, other)]


@dataclass
class LoadedPlans(PlanCache):
    """The plans of a loaded function.

    Attributes:
        filed: the plans of the file.
        recompiles: whether the original function is here, and a call that no plan fits compiles another one.
    """

    filed: Sequence[FiledPlan] = field(default_factory=tuple)
    recompiles: bool = False

    def why_eagerly(self, tensors: Sequence[torch.Tensor]) -> str | None:
        """Raises NoPlanError where the function itself would run, and is not here."""
        reason = super().why_eagerly(tensors)
        if reason is not None and not self.recompiles:
            raise NoPlanError(f"{self.name} was loaded without its function, which this call would run: {reason}")
        return reason

    @property
    def unread(self) -> int:
        return sum(filed.revived is None for filed in self.filed)

    def make(self, call: Call) -> Admitted:
        """The plan of the file for a call.

        Raises:
            NoPlanError: there is none, and nothing is recompiled.
        """
        with COMPILING:
            found = self.find(call.key, call.tensors) or self.find_filed(call)
            if found is not None:
                return found
            if not self.recompiles:
                raise NoPlanError(f"{self.name} has no plan for this call: {self.nearest(call)}")
            return super().make(call)

    def find_filed(self, call: Call) -> Admitted | None:
        form = form_of_call(call)
        for filed in self.filed:
            if form is None or filed.other_conditions(form):
                continue
            plan = filed.ready(self.compiler, self.original(call)).plan(call.tensors)
            if plan is not None and (admission := plan.guards.check(call.tensors)):
                self.add(plan, call)
                return Admitted.of(plan, admission)
        return None

    def original(self, call: Call) -> Callable[[Dedupe], FlatFunction] | None:
        """Makes the function that derivatives retrace."""
        return (lambda dedupe: FlatCall.of(call, dedupe)) if self.recompiles else None

    def nearest(self, call: Call) -> str:
        """What keeps the nearest plan from serving a call."""
        form = form_of_call(call)
        if form is None:
            return "the state of the function cannot be read"
        others = [(filed, filed.other_conditions(form)) for filed in self.filed]
        close = [filed for filed, reasons in others if not reasons]
        if not close:
            return min((reasons for _, reasons in others), key=len)[0]
        reasons = (filed.ready(self.compiler, self.original(call)).why_not(call.tensors) for filed in close)
        return "; ".join(dict.fromkeys(reasons))


def form_of_call(call: Call) -> Mapping[str, Any] | None:
    try:
        return call_form(call.current_key())
    except NoForm:
        return None
