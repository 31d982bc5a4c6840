"""Calls of a compiled function that its own plans cannot serve: under transforms of `torch.func`, and with dual numbers.

`Dispatch` runs plans of derived functions, or the function itself. `higher_order` makes what a plan computes gradients of
gradients from. Both compile on demand, with the compiler of the function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch

from aotgrad import pipeline, torch_compat
from aotgrad.backends import FunctionBackend, nop
from aotgrad.errors import AOTGradError
from aotgrad.partition import default_partition
from aotgrad.pipeline import Compiler, Source, TracedJoint
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.call import AmbientState
from aotgrad.plan_cache.entry import NotCompiled
from aotgrad.runtime.recomputation import HigherOrder
from aotgrad.subclasses.forms import form_of
from aotgrad.telemetry.counters import counters
from aotgrad.transforms.captured_function import CapturedFunction
from aotgrad.transforms.closure_lifting import lift_closure
from aotgrad.transforms.derived import CalledFunction
from aotgrad.transforms.functorch import CallContext, SeveralNodes
from aotgrad.transforms.jvp import call_with_duals
from aotgrad.transforms.plans import DerivedPlans
from aotgrad.transforms.subfunctions import CallResult, SubFunction
from aotgrad.transforms.vjp import CompiledVjp
from aotgrad.transforms.vmap import CompiledBatches

VJP_LIMIT = 1024
"""The limit for the vjps of one plan: its structure bounds what they are called with, and they have its shapes."""


LIMIT_FACTOR = 16
"""A function has several plans of batches and derivatives for each plan of its own."""


def higher_order(source: Source, traced: TracedJoint, compiler: Compiler) -> HigherOrder:
    """The gradients of gradients of a function that was just traced; compiled when first needed, with these settings."""
    settings = torch_compat.CompilerSettings.now()
    function, cuts = source.function, compiler.cuts
    captured = CapturedFunction(
        function, traced.capture, traced.meta, traced.joint, cuts, source.known, torch_compat.OpSettings.now()
    )
    complete = replace(compiler.with_options(min_graph_ops=0, plan_limit=VJP_LIMIT), is_derivative=True)
    vjps = DerivedPlans(PlanCache(complete, "vjp of a compiled function"), settings=settings)
    return CompiledVjp(captured, vjps, CompiledBatches.of(compiler, "batched backward of a compiled function"))


@dataclass
class Dispatch:
    """Calls of the function of a cache while transforms are open, or with dual numbers.

    Attributes:
        parts: the subfunctions of kinds of calls whose results need several autograd nodes, with the places of the
            function's results.
    """

    cache: PlanCache
    parts: dict[Hashable, tuple[Sequence[SubFunction], Sequence[CallResult | None]]] = field(default_factory=dict)

    @cached_property
    def plans(self) -> DerivedPlans:
        """The plans of all functions that are derived from this one."""
        return DerivedPlans(PlanCache(self.compiler, f"transforms of {self.cache.name}"))

    @cached_property
    def captures(self) -> DerivedPlans:
        """Plans of the same functions that stop at the first stage: they never run."""
        backend = FunctionBackend("captures", nop, min_graph_ops=sys.maxsize)
        compiler = replace(self.compiler.with_options(min_graph_ops=None), backend=backend)
        return DerivedPlans(PlanCache(compiler, f"captures of transforms of {self.cache.name}"), checked=False)

    @cached_property
    def traces(self) -> DerivedPlans:
        """Plans of the same functions that are compiled as cheaply as possible: they never run."""
        backend = FunctionBackend("traces", nop)
        compiler = replace(self.compiler, backend=backend, partition_fn=default_partition, lower=pipeline.lower)
        return DerivedPlans(PlanCache(compiler, f"traces of transforms of {self.cache.name}"), checked=False)

    @property
    def compiler(self) -> Compiler:
        compiler = self.cache.compiler
        return compiler.with_options(plan_limit=LIMIT_FACTOR * compiler.options.plan_limit)

    def clear(self) -> None:
        """Forget all plans."""
        self.plans.clear()
        self.captures.clear()
        self.traces.clear()
        self.parts.clear()

    def call(self, function: Callable, arguments: Arguments, state: AmbientState) -> Any:
        """Call `function`; see `PlanCache.call`."""
        function, arguments = lift_closure(original := function, arguments)
        if function is not original:
            state = replace(state, eager=function)
        try:
            if torch_compat.only_forward_mode():
                return call_with_duals(self.plans, CalledFunction.of(function, arguments, state), arguments.tensors, state)
            if torch_compat.only_transforms(arguments.tensors):
                return self.call_under_transforms(CalledFunction.of(function, arguments, state), arguments.tensors, state)
        except NotCompiled:
            pass
        counters["inlined"] += 1
        return state.eager(*arguments.args, **arguments.kwargs)

    def call_under_transforms(self, function: CalledFunction, tensors: Sequence[torch.Tensor], state: AmbientState) -> Any:
        """The result under the transforms that are open.

        Raises:
            NotCompiled: there can be no plan.
            CaptureError: nor can the function run op by op, since the trace has changed an attribute.
        """
        outside = any(torch_compat.innermost(tensor).requires_grad for tensor in tensors)
        kind = (function.key, outside)
        if kind in self.plans.refused or any(torch_compat.innermost(tensor).is_nested for tensor in tensors):
            raise NotCompiled
        context = CallContext(
            self.plans,
            self.captures,
            self.traces,
            torch.is_grad_enabled(),
            partial(function.is_unchanged, state),
            tuple(isinstance(tensor, torch.nn.Parameter) for tensor in tensors),
        )
        try:
            result = self.run(function, tensors, context, outside)
        except (NotCompiled, AOTGradError) as error:
            function.reject_changed_state(state, error)
            self.plans.refused.add(kind)
            raise NotCompiled from error
        counters["transformed"] += 1
        return result

    def run(self, function: CalledFunction, tensors: Sequence[torch.Tensor], context: CallContext, outside: bool) -> Any:
        """The result, computed by plans of the derived functions, or of the subfunctions.

        Raises:
            NotCompiled, AOTGradError: there can be no such plan.
        """
        with torch_compat.outside_transforms():
            forms = [form_of(torch_compat.innermost(tensor)).key for tensor in tensors]
        tensor_kinds = ((tensor.shape, tensor.dtype, form) for tensor, form in zip(tensors, forms, strict=True))
        kind = (function.key, outside, context.tracked(tensors), *tensor_kinds)
        if kind not in self.parts:
            try:
                return context.call(function, tensors)
            except SeveralNodes as found:
                if not context.is_unchanged():
                    raise NotCompiled from found  # each subfunction would change the function's state
                self.parts[kind] = (found.parts, found.places)
        return context.call_in_parts(function, tensors, *self.parts[kind])
