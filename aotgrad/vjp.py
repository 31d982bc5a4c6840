"""The vector-Jacobian product of a captured function, compiled by the same pipeline.

    vjp(*primals, *tangents) -> gradients of the wanted primals, differentiable again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad.errors import HigherOrderError
from aotgrad.ir import AliasOfIntermediate, Capture, TensorInput, ViewAndMutationMeta
from aotgrad.slots import ForwardResult, IntermediateBase, UpdatedInput, UserOutput


@dataclass(frozen=True)
class VjpCompiler:
    """Compiles the vjp of `function` for given tangents. `compile_flat` is the pipeline with its settings bound."""

    function: Callable[..., Sequence[Any]]
    capture: Capture
    meta: ViewAndMutationMeta
    results: tuple[ForwardResult, ...]
    compile_flat: Callable[[Callable, Sequence[Any], Sequence[bool]], Any]

    def __call__(self, primals: Sequence[Any], tangents: Sequence[Any], wanted: Sequence[bool]) -> Callable[[list], list]:
        """An executable of `[*primals, *defined tangents]` that returns one gradient per gradient input."""
        for slot in self.results:
            if isinstance(slot, UpdatedInput):
                reject_mutated(slot.index)
        defined = [k for k, tangent in enumerate(tangents) if tangent is not None]
        arguments = [*primals, *(tangents[k] for k in defined)]
        vjp = VectorJacobianProduct(self, tuple(defined), tuple(wanted))
        static = [isinstance(spec, TensorInput) and spec.is_static for spec in self.capture.inputs]
        executable = self.compile_flat(vjp, arguments, [*static, *(False for _ in defined)])
        self.check_old_values(executable)
        return executable

    def check_old_values(self, executable: Any) -> None:
        """A mutated input holds its new value by now; raise if the vjp would read it."""
        placeholders = executable.capture.placeholders
        for index, info in enumerate(self.meta.inputs):
            if info is not None and info.mutation.data and placeholders[index].users:
                reject_mutated(index)


def reject_mutated(index: int) -> None:
    """Raises HigherOrderError: the vjp needs input `index` as it was before the call."""
    raise HigherOrderError(
        f"create_graph=True needs the value that input {index} had before the compiled function changed it in place; "
        "pass a clone(), or change it outside of the compiled function"
    )


@dataclass(frozen=True)
class VectorJacobianProduct:
    """The function that is traced: runs the original one, then differentiates it."""

    compiler: VjpCompiler
    defined: tuple[int, ...]
    wanted: tuple[bool, ...]

    def __call__(self, *arguments: Any) -> list[torch.Tensor | None]:
        count = len(self.compiler.capture.inputs)
        primals, tangents = list(arguments[:count]), arguments[count:]
        with torch.enable_grad():
            outputs = self.compiler.function(*self.protected(primals))
            roots = [self.root(slot, outputs) for slot in self.slots]
            return self.gradients(roots, primals, tangents)

    @property
    def slots(self) -> list[ForwardResult]:
        return [self.compiler.results[k] for k in self.defined]

    def protected(self, primals: Sequence[Any]) -> list[Any]:
        """Clones of the inputs that the function changes: it has changed them once already."""
        infos = zip(primals, self.compiler.meta.inputs, strict=True)
        return [p.clone() if info is not None and info.mutation.data else p for p, info in infos]

    def root(self, slot: ForwardResult, outputs: Sequence[Any]) -> torch.Tensor:
        """The tensor that a tangent belongs to."""
        match slot:
            case UserOutput(index):
                return outputs[index]
            case IntermediateBase(index):
                infos = self.compiler.meta.outputs
                member = next(k for k, i in enumerate(infos) if isinstance(i, AliasOfIntermediate) and i.base == index)
                return outputs[member]._base
        raise AssertionError(slot)

    def gradients(
        self, roots: Sequence[torch.Tensor], primals: Sequence[Any], tangents: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        specs = self.compiler.capture.inputs
        inputs = [i for i, spec in enumerate(specs) if isinstance(spec, TensorInput) and spec.requires_grad]
        wanted = [i for i, is_wanted in zip(inputs, self.wanted, strict=True) if is_wanted]
        found = torch.autograd.grad(roots, [primals[i] for i in wanted], tangents, create_graph=True, allow_unused=True)
        by_index = dict(zip(wanted, found, strict=True))
        return [by_index.get(i) for i in inputs]
