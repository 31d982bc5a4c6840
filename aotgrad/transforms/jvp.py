"""Forward-mode derivatives: results and tangents of a function, in one compiled graph.

    jvp(*tensors, *tangents of those that are dual) -> results, their tangents      both differentiable in reverse mode

A compiled function that is called with dual numbers (`torch.autograd.forward_ad`, or one `torch.func.jvp`) runs this in
place of its own plan. Views of arguments are made outside of the plan. A call that changes an input runs op by op, since its
tangent would have to change, too; so does one that closed over a tensor with a tangent. Other transforms of `torch.func` are
in `transforms/functorch.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.pipeline import Stages
from aotgrad.plan_cache.arguments import Arguments
from aotgrad.plan_cache.call import AmbientState
from aotgrad.plan_cache.entry import NotCompiled
from aotgrad.runtime.autograd import mark_as_dual
from aotgrad.torch_compat import Dual
from aotgrad.transforms.derived import CalledFunction, DerivedFunction, reject_changes_and_aliases
from aotgrad.transforms.input_views import with_views
from aotgrad.transforms.plans import DerivedPlans


@dataclass(frozen=True)
class DualCall(DerivedFunction):
    """The results of a function, and their tangents, `None` where there is none.

    Takes the arguments, then the tangents of the arguments `dual`. Unlike a `Jvp`, it is no transform of `torch.func`.
    """

    function: CalledFunction
    dual: tuple[int, ...]
    is_derivative = True

    def check(self, stages: Stages) -> None:
        reject_changes_and_aliases(stages)

    def __call__(self, *values: torch.Tensor) -> tuple[Any, list[torch.Tensor | None]]:
        count = len(values) - len(self.dual)
        tensors, tangents = list(values[:count]), values[count:]
        with torch_compat.forward_mode_level():
            for position, tangent in zip(self.dual, tangents, strict=True):
                tensors[position] = torch.autograd.forward_ad.make_dual(tensors[position], tangent)
            leaves, spec = pytree.tree_flatten(self.function(*tensors).result)
            duals = [torch_compat.unpack_dual(leaf) for leaf in leaves]
        return pytree.tree_unflatten([dual.primal for dual in duals], spec), [dual.tangent for dual in duals]


def call_with_duals(
    plans: DerivedPlans, function: CalledFunction, tensors: Sequence[torch.Tensor], state: AmbientState
) -> Any:
    """The result of a function for dual numbers, made of dual numbers.

    Raises:
        NotCompiled: no tensor has a tangent; or the function changes an input, or returns several views of an intermediate.
        CaptureError: nor can the function run op by op, since the trace has changed an attribute.
    """
    duals = [torch_compat.unpack_dual(tensor) for tensor in tensors]
    call = DualCall(function, tuple(k for k, dual in enumerate(duals) if dual.tangent is not None))
    if not call.dual or call.key in plans.refused:
        raise NotCompiled
    values = (*(dual.primal for dual in duals), *(duals[k].tangent for k in call.dual))
    with torch_compat.outside_transforms() as level:
        try:
            results, tangents = plans.call(call, Arguments.of(values, {}), partial(function.is_unchanged, state))
        except NotCompiled as error:
            function.reject_changed_state(state, error)
            plans.refused.add(call.key)
            raise
    leaves, spec = pytree.tree_flatten(results)
    for value in filter(torch.is_tensor, (*leaves, *tangents)):
        mark_as_dual(value)
    pairs = zip(leaves, tangents, strict=True)
    result = pytree.tree_unflatten([torch_compat.pack_dual(Dual(*pair), level) for pair in pairs], spec)
    return with_views(result, tensors)
