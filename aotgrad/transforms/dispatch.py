"""What is derived from a compiled function, made when somebody asks for it.

`derivatives` is what gradients of gradients come from, `Dispatch` what runs inside of `torch.func` transforms and with dual
numbers. Each has plans of its own, made by the compiler of the function.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from aotgrad import torch_compat
from aotgrad.backends import FunctionBackend, nop
from aotgrad.pipeline import Compiler, Source, TracedJoint
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.cache import PlanCache
from aotgrad.plan_cache.call import AmbientState
from aotgrad.runtime.recomputation import HigherOrder
from aotgrad.transforms.functorch import CompiledTransforms, reject_changes, reject_what_transforms_see
from aotgrad.transforms.jvp import CompiledJvp, reject_aliases
from aotgrad.transforms.vjp import CapturedFunction, CompiledVjp, check_old_values
from aotgrad.transforms.vmap import CompiledBatches

MOST_PLANS = 1024
"""The limit for the vjps of one plan: what they are called with is bounded by its structure, and has its shapes."""


PLANS_OF_TRANSFORMS = 8
"""A function has several plans of batches and derivatives for each plan of its own."""


def derivatives(source: Source, traced: TracedJoint, compiler: Compiler) -> HigherOrder:
    """The gradients of gradients of a function that was just traced; compiled when first asked for."""
    function, segments = source.function, compiler.options.grad_segments
    captured = CapturedFunction(
        function, traced.capture, traced.meta, traced.joint, segments, source.known, torch_compat.autocast_state()
    )
    name = getattr(function, "__qualname__", "a compiled function")
    whole = compiler.with_options(min_graph_ops=0, plan_limit=MOST_PLANS)
    vjps = PlanCache(whole, f"vjp of {name}", check=functools.partial(check_old_values, captured))
    return CompiledVjp(captured, vjps, CompiledBatches(PlanCache(compiler, f"batched backward of {name}")))


@dataclass
class Dispatch:
    """What runs of a function where no plan of its own can be used: what transforms make of it, or the function itself."""

    cache: PlanCache
    made: CompiledTransforms | None = None

    def call(self, function: Any, arguments: Arguments, state: AmbientState) -> Any:
        """Call `function`; see `PlanCache.call`."""
        if self.made is None:
            self.made = compiled_transforms(self.cache)
        return self.made.call(function, arguments, state)

    def clear(self) -> None:
        """Forget all plans."""
        self.made = None


def compiled_transforms(cache: PlanCache) -> CompiledTransforms:
    """What transforms make of the function of a cache; the flags of a derivative are only asked for, and never computed."""
    compiler, name = cache.compiler, cache.name
    several = compiler.with_options(plan_limit=PLANS_OF_TRANSFORMS * compiler.options.plan_limit)
    uncompiled = replace(several, backend=FunctionBackend("flags", nop))
    return CompiledTransforms(
        PlanCache(several, f"a transform of {name}", check=reject_what_transforms_see),
        PlanCache(several, f"a derivative of {name}", check=reject_changes),
        PlanCache(uncompiled, f"the flags of a derivative of {name}"),
        CompiledJvp(PlanCache(compiler, f"jvp of {name}", check=reject_aliases)),
    )
