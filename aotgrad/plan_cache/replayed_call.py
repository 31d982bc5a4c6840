"""A call that runs once more, for the gradient of a result that is a tensor subclass and that arrives in another form.

The plan has assumed a form. What the call changes is copied before, and it draws the same random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.graph import op_table
from aotgrad.ir import MutationType
from aotgrad.pipeline import Traced
from aotgrad.plan_cache.call import Call
from aotgrad.plan_cache.generators import GeneratorArguments
from aotgrad.subclasses.boundary import Wrappers
from aotgrad.subclasses.bridge import GradientForm, ResultGradient
from aotgrad.subclasses.passages import gradients_end_at

if TYPE_CHECKING:
    from aotgrad.plan_cache.cache import PlanCache


@dataclass(frozen=True)
class ReplayedCall:
    """A call that runs once more, for the gradient of a result that has another form than the plan has assumed.

    Attributes:
        positions: its tensors that require grad.
        stages: of its plan.
        wrappers: what its trace has found.
        copies: of the tensors that it has changed, by position.
        random_state: what it has drawn random numbers from.
    """

    cache: PlanCache
    call: Call
    positions: Sequence[int]
    stages: Traced
    wrappers: Wrappers
    copies: Mapping[int, torch.Tensor]
    random_state: Any

    def gradients(self, inputs: Sequence[torch.Tensor], arrived: ResultGradient) -> Sequence[torch.Tensor | None]:
        """The gradients of `inputs`, then of the results that pass them on; later calls expect the form that has arrived.

        Raises:
            CaptureError: the function does more than compute its results.
        """
        arguments, differentiable = self.call.arguments, torch.is_grad_enabled()
        self.cache.gradient_forms.learn_result(self.call, arrived)
        self.reject_second_effect(arrived.index, arrived.form)
        with torch.enable_grad(), torch_compat.random_state_of(self.random_state):
            fresh = [value.view_as(value) if differentiable else value.detach().requires_grad_() for value in inputs]
            given = {**dict(enumerate(arguments.tensors)), **self.copies, **dict(zip(self.positions, fresh, strict=True))}
            tensors = [value.clone() if k in self.copies else value for k, value in given.items()]
            call = self.call._replace(arguments=arguments.with_tensors(tensors))
            result = self.cache.run(self.cache.plan_for(call))
        leaves = pytree.tree_leaves(result)
        root, *ends = (self.wrappers.tensor_at(leaves, index) for index in (arrived.index, *arrived.passed))
        with gradients_end_at(ends):
            return torch.autograd.grad(root, [*fresh, *ends], arrived.value, allow_unused=True, create_graph=differentiable)

    def reject_second_effect(self, index: int, form: GradientForm) -> None:
        """Raise if a second run would repeat an effect.

        Raises:
            CaptureError
        """
        infos = (info for _, info in self.stages.arguments if info is not None)
        reasons = {
            "changes its arguments": not self.copies and any(info.mutation is not MutationType.NONE for info in infos),
            "draws from a torch.Generator": isinstance(self.call.arguments, GeneratorArguments),
            "has side effects": any(map(repeats_badly, self.stages.capture.trace.graph.nodes)),
        }
        reason = next((text for text, holds in reasons.items() if holds), None)
        if reason is not None:
            raise CaptureError(
                f"the gradient of output {index} arrives as a {form.form.name}, in another form than the call has assumed, "
                f"and the function {reason}, so that it cannot run once more for this gradient. Later calls expect this "
                "form: run the function first on a batch whose gradients are not used"
            )


def tensors_to_copy(
    stages: Traced, wrappers: Wrappers, values: Sequence[Any], places: Sequence[int]
) -> Sequence[torch.Tensor]:
    """The arguments that a call changes, until the forms of gradients are known: it may have to run once more.

    Args:
        values: the arguments, with wrappers whole.
        places: for each argument of the trace, the position of the value that it is or comes from.
    """
    if wrappers.knows_gradients() or stages.shares_memory:
        return ()
    mutations = {k: info.mutation for k, (_, info) in enumerate(stages.arguments) if info is not None}
    if any(mutation.metadata for mutation in mutations.values()):
        return ()
    changed = [k for k, mutation in mutations.items() if mutation.data]
    return [values[k] for k in {*wrappers.changed_arguments(), *(places[k] for k in changed)}]


def repeats_badly(node: fx.Node) -> bool:
    """Whether a second run of an op has a second effect; all ranks repeat a collective, and a check holds again."""
    is_communication = op_table.is_collective(node.target) or op_table.is_wait(node.target)
    return op_table.has_effect(node.target) and not is_communication and not op_table.is_check(node.target)
