"""Gradients of gradients: the vector-Jacobian product of the original function, as a compiled function of its own.

The traced backward is not differentiated: its `detach`es cut the tape, and composite backward ops have no derivative. Under
`create_graph=True` the node calls `vjp(primals, tangents)` on the saved inputs, which goes through the same pipeline, and
whose own node does the same again: order n by recursion. A program that never asks for it compiles nothing.

Known limits: an input whose old value is needed but was mutated by the call cannot be used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.guards import plan_key


@dataclass(slots=True)
class Recomputation:
    """What the original function can be run again from: its inputs, their versions, the random state at entry.

    A version is `None` for numbers, and for inputs that the call itself changes.
    """

    primals: tuple[Any, ...]
    versions: list[int | None]
    random_state: Any

    def check_unchanged(self) -> None:
        """Raise what eager would: a saved tensor was modified in place.

        Raises:
            RuntimeError: as eager's.
        """
        for primal, version in zip(self.primals, self.versions, strict=True):
            if version is not None and torch_compat.version_of(primal) != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"an input of shape {tuple(primal.shape)} is at version {torch_compat.version_of(primal)}; expected "
                    f"version {version} instead"
                )


CompileVjp = Callable[[Sequence[Any], Sequence["torch.Tensor | None"], Sequence[bool]], Callable[[list], list]]


@dataclass
class HigherOrder:
    """The compiled vector-Jacobian products of one function, by what their trace depended on."""

    compile_vjp: CompileVjp
    plans: dict[tuple, Callable[[list], list]] = field(default_factory=dict)

    def __call__(
        self, call: Recomputation, tangents: Sequence[torch.Tensor | None], wanted: Sequence[bool]
    ) -> list[torch.Tensor | None]:
        """Differentiable gradients, one per gradient input of the node; `None` where not wanted or undefined."""
        call.check_unchanged()
        defined = [tangent for tangent in tangents if tangent is not None]
        arguments = [*call.primals, *defined]
        pattern = tuple(tangent is not None for tangent in tangents)
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        numbers = tuple(argument for argument in call.primals if not isinstance(argument, torch.Tensor))
        key = plan_key(tensors, (pattern, tuple(wanted), numbers), dynamic=False)
        if key not in self.plans:
            self.plans[key] = self.compile_vjp(call.primals, tangents, wanted)
        with torch_compat.random_state_of(call.random_state), torch_compat.disable_autocast():
            return self.plans[key](arguments)

