"""Forward-mode derivatives: the Jacobian-vector product of a function, compiled by the same pipeline as the function.

    jvp(*tensors, *tangents of those that are dual) -> results, their tangents      both differentiable in reverse mode

A compiled function that is called with dual numbers (`torch.autograd.forward_ad`, or `torch.func.jvp` around it) runs this
in place of its own plan: one compiled graph computes results and tangents. The plans are kept beside the function's own.

Results that are views of an argument are made outside of the plan. A call that changes an input, whose tangent would have to
follow, runs the original function as it is; so does one that closed over a tensor with a tangent. Other transforms of
`torch.func` are in `transforms/functorch.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.guards.plan import structure_key
from aotgrad.ir import AliasOfIntermediate, ConstantOutput, NonAlias, SymOutput, UnsafeViewAlias, ViewAndMutationMeta
from aotgrad.pipeline import Stages
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.call import AmbientState, Call
from aotgrad.runtime.autograd import mark_as_dual
from aotgrad.telemetry.counters import counters
from aotgrad.torch_compat import Dual
from aotgrad.transforms.input_views import NotCompiled, Watched, with_views

if TYPE_CHECKING:
    from aotgrad.plan_cache.cache import PlanCache


@dataclass(frozen=True)
class JacobianVectorProduct:
    """The function that is traced: makes dual numbers, runs the original function, and takes its results apart.

    `arguments` is the structure of the call, without its tensors; `dual` are the positions of the tensors with a tangent.
    """

    function: Callable[..., Any]
    arguments: Arguments
    dual: tuple[int, ...]

    def __call__(self, *values: torch.Tensor) -> tuple[Any, list[torch.Tensor | None]]:
        count = len(values) - len(self.dual)
        tensors, tangents = list(values[:count]), values[count:]
        with torch_compat.forward_mode_level():
            for position, tangent in zip(self.dual, tangents, strict=True):
                tensors[position] = torch.autograd.forward_ad.make_dual(tensors[position], tangent)
            args, kwargs = self.arguments.rebuild(tensors)
            with Watched(tensors) as watched:
                result = self.function(*args, **kwargs)
            leaves, spec = pytree.tree_flatten(watched.without_views(result))
            duals = [torch_compat.unpack_dual(leaf) for leaf in leaves]
        return pytree.tree_unflatten([dual.primal for dual in duals], spec), [dual.tangent for dual in duals]


@dataclass(frozen=True)
class CompiledJvp:
    """The compiled jvps of one function; `refused` are the kinds of calls that run the function as it is."""

    plans: PlanCache
    refused: set[tuple] = field(default_factory=set)

    def call(self, function: Callable, arguments: Arguments, state: AmbientState) -> Any:
        """Call `function` while a forward-mode level or a `torch.func` transform is open; see `PlanCache.call`."""
        if torch_compat.only_forward_mode():
            duals = [torch_compat.unpack_dual(tensor) for tensor in arguments.tensors]
            positions = tuple(k for k, dual in enumerate(duals) if dual.tangent is not None)
            key = structure_key(arguments.constants, arguments.spec, (positions, state.value))
            if positions and key not in self.refused:
                try:
                    return self.run(function, arguments, duals, positions, replace(state, value=key, reread=lambda: key))
                except NotCompiled:
                    self.refused.add(key)
        counters["inlined"] += 1
        return state.eager(*arguments.args, **arguments.kwargs)

    def run(
        self,
        function: Callable,
        arguments: Arguments,
        duals: Sequence[Dual],
        positions: tuple[int, ...],
        state: AmbientState,
    ) -> Any:
        """The results as dual numbers, computed by a compiled jvp.

        Raises:
            NotCompiled: the function changes an input, or returns several views of an intermediate.
        """
        product = JacobianVectorProduct(function, arguments.without_tensors(), positions)
        values = (*(dual.primal for dual in duals), *(duals[k].tangent for k in positions))
        with torch_compat.outside_transforms() as level:
            state = replace(state, eager=product)
            call = Call(product, Arguments.of(values, {}), static_count=0, state=state)
            results, tangents = self.plans.run(self.plans.plan_for(call))
        leaves, spec = pytree.tree_flatten(results)
        for value in filter(torch.is_tensor, (*leaves, *tangents)):
            mark_as_dual(value)
        pairs = zip(leaves, tangents, strict=True)
        result = pytree.tree_unflatten([torch_compat.pack_dual(Dual(*pair), level) for pair in pairs], spec)
        return with_views(result, arguments.tensors)


COMPILED_OUTPUTS = (NonAlias, UnsafeViewAlias, SymOutput, ConstantOutput)


def reject_aliases(executable: Stages) -> None:
    """Raises NotCompiled for a jvp whose results are not all fresh, or that changes an input or registers hooks on one."""
    meta: ViewAndMutationMeta = executable.meta
    changes = any(info is not None and info.version_bumps + info.mutation.data for info in meta.inputs)
    bases = [info.base for info in meta.outputs if isinstance(info, AliasOfIntermediate)]
    lone = len(bases) == len(set(bases))  # nobody else sees what such a view is a view of
    compiled = (*COMPILED_OUTPUTS, AliasOfIntermediate) if lone else COMPILED_OUTPUTS
    if changes or executable.capture.hooks or not all(isinstance(info, compiled) for info in meta.outputs):
        raise NotCompiled
