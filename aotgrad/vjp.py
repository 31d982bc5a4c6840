"""Gradients of gradients: the vector-Jacobian product of the original function, as a compiled function of its own.

    vjp(*primals, *defined tangents) -> gradients of the wanted primals, differentiable again

The traced backward is not differentiated: its `detach`es cut the tape, and composite backward ops have no derivative. Under
`create_graph=True` the node calls this vjp on the inputs of the call. It goes through the same pipeline, and its own node
does the same again: order n by recursion. A program that never asks for it compiles nothing.

Known limits: an input whose old value is needed but was changed by the call raises `HigherOrderError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.capture.flatten import Arguments
from aotgrad.errors import HigherOrderError
from aotgrad.ir import AliasOfIntermediate, Capture, MemberInput, TensorInput, ViewAndMutationMeta
from aotgrad.pipeline import Executable, SmallGraph
from aotgrad.plan_cache import PlanCache, State
from aotgrad.runtime.recomputation import Gradients, Recomputation
from aotgrad.slots import ForwardResult, IntermediateBase, UpdatedInput, UserOutput


@dataclass(frozen=True)
class CapturedFunction:
    """A function with what a first trace found out about it. `results` are the forward results that have tangents."""

    call: Callable[..., Sequence[Any]]
    capture: Capture
    meta: ViewAndMutationMeta
    results: tuple[ForwardResult, ...]

    @property
    def differentiable_inputs(self) -> list[int]:
        specs = enumerate(self.capture.inputs)
        return [index for index, spec in specs if isinstance(spec, TensorInput) and spec.requires_grad]

    def reject_lost_inputs(self) -> None:
        """Raise if an input that gradients flow to or through is another tensor by now.

        Raises:
            HigherOrderError: names the input.
        """
        for index, spec in enumerate(self.capture.inputs):
            if isinstance(spec, MemberInput):
                reject_old_value(index)
        for slot in self.results:
            if isinstance(slot, UpdatedInput):
                reject_old_value(slot.index)
        for index, info in enumerate(self.meta.inputs):
            if info is not None and info.mutation.metadata:
                reject_old_value(index)

    @property
    def mutated_inputs(self) -> list[int]:
        return [index for index, info in enumerate(self.meta.inputs) if info is not None and info.mutation.data]


@dataclass(frozen=True)
class CompiledVjp:
    """The compiled vjps of one function. Implements `runtime.recomputation.HigherOrder`."""

    function: CapturedFunction
    cache: PlanCache

    def __call__(self, call: Recomputation, tangents: Gradients, wanted: Sequence[bool]) -> Gradients:
        call.check_unchanged()
        self.function.reject_lost_inputs()
        defined = tuple(k for k, tangent in enumerate(tangents) if tangent is not None)
        vjp = VectorJacobianProduct(self.function, defined, tuple(wanted))
        arguments = Arguments.of((*call.primals, *(tangents[k] for k in defined)), {})
        with torch_compat.random_state_of(call.random_state), torch_compat.disable_autocast():
            if self.cache.runs_eagerly(arguments.tensors):
                return vjp(*arguments.args)
            return self.cache.call(vjp, arguments, static_count=0, state=State(vjp, vjp.key, lambda: vjp.key))


def check_old_values(function: CapturedFunction, executable: Executable | SmallGraph) -> None:
    """An input that the function changed holds its new value by now; raise if the vjp would read it."""
    placeholders = executable.capture.placeholders
    for index in function.mutated_inputs:
        if index < len(placeholders) and placeholders[index].users:
            reject_old_value(index)


def reject_old_value(index: int) -> None:
    """Raises HigherOrderError: the vjp needs input `index` as it was before the call."""
    raise HigherOrderError(
        f"create_graph=True needs the value that input {index} had before the compiled function changed it in place; "
        "pass a clone(), or change it outside of the compiled function"
    )


@dataclass(frozen=True)
class VectorJacobianProduct:
    """The function that is traced: runs the original one, then differentiates it."""

    function: CapturedFunction
    defined: tuple[int, ...]
    wanted: tuple[bool, ...]

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        return (self.defined, self.wanted)

    def __call__(self, *arguments: Any) -> list[torch.Tensor | None]:
        count = len(self.function.capture.inputs)
        primals, tangents = list(arguments[:count]), arguments[count:]
        with torch.enable_grad():
            outputs = self.function.call(*self.protected(primals))
            roots = [self.root(self.function.results[k], outputs) for k in self.defined]
            return self.gradients(roots, primals, tangents)

    def protected(self, primals: Sequence[Any]) -> list[Any]:
        """Clones of the inputs that the function changes: it has changed them once already."""
        mutated = self.function.mutated_inputs
        return [primal.clone() if index in mutated else primal for index, primal in enumerate(primals)]

    def root(self, slot: ForwardResult, outputs: Sequence[Any]) -> torch.Tensor:
        """The tensor that a tangent belongs to."""
        match slot:
            case UserOutput(index):
                return outputs[index]
            case IntermediateBase(index):
                infos = self.function.meta.outputs
                member = next(k for k, i in enumerate(infos) if isinstance(i, AliasOfIntermediate) and i.base == index)
                return outputs[member]._base
        raise AssertionError(slot)

    def gradients(
        self, roots: Sequence[torch.Tensor], primals: Sequence[Any], tangents: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        inputs = self.function.differentiable_inputs
        wanted = [index for index, is_wanted in zip(inputs, self.wanted, strict=True) if is_wanted]
        found = torch.autograd.grad(roots, [primals[i] for i in wanted], tangents, create_graph=True, allow_unused=True)
        by_index = dict(zip(wanted, found, strict=True))
        return [by_index.get(index) for index in inputs]
