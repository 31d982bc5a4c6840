"""The autograd node of a compiled region, and what it runs when a gradient arrives.

The compiled forward has already run when the node is made: `Segment.forward` only hands its results to autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.errors import HigherOrderError
from aotgrad.ir import BoxedCallable


@dataclass(frozen=True)
class Backward:
    """The compiled backward of a plan.

    `gradient_inputs` are the positions, among the graph's gradients, of those that the node returns; `formats` the
    dtype and device of each tangent, for one that is undefined.
    """

    graph: BoxedCallable
    gradient_inputs: tuple[int, ...]
    formats: tuple[tuple[torch.dtype, torch.device], ...]

    def __call__(self, saved: Sequence[torch.Tensor], sizes: Sequence[int], tangents: Sequence[Any]) -> list[Any]:
        """Gradients of the node's inputs. `tangents` have the layout that the graph was traced with."""
        with torch_compat.below_autograd(), torch_compat.disable_autocast():
            gradients = self.graph([*sizes, *saved, *tangents])
        return [gradients[index] for index in self.gradient_inputs]


@dataclass(slots=True)
class SegmentCall:
    """What one call of the compiled function gives its autograd node."""

    backward: Backward
    outputs: tuple[torch.Tensor, ...]
    saved: tuple[torch.Tensor, ...]
    sizes: tuple[int, ...]
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


class Segment(torch.autograd.Function):
    """One autograd node: its outputs were computed before, its inputs are the differentiable primals."""

    clear_saved_tensors_on_access = True

    @staticmethod
    def forward(ctx: Any, call: SegmentCall, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        if call.saved:
            ctx.save_for_backward(*call.saved)
        ctx.backward_graph, ctx.sizes, ctx.layouts, ctx.saves = call.backward, call.sizes, call.layouts, bool(call.saved)
        return call.outputs

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise HigherOrderError(
                "create_graph=True through a compiled function is not supported yet; take the first gradient with "
                "create_graph=False, or compute it inside the compiled function with torch.autograd.grad"
            )
        backward: Backward = ctx.backward_graph
        ready = [
            as_traced(tangent, layout, format)
            for tangent, layout, format in zip(tangents, ctx.layouts, backward.formats, strict=True)
        ]
        saved = ctx.saved_tensors if ctx.saves else ()
        return (None, *backward(saved, ctx.sizes, ready))


def as_traced(tangent: torch.Tensor | None, layout: tuple, format: tuple[torch.dtype, torch.device]) -> torch.Tensor:
    """A tangent with the strides that the backward was traced with; zeros for one that is undefined."""
    size, stride = layout
    if tangent is None:
        dtype, device = format
        return torch.empty_strided(size, stride, dtype=dtype, device=device).zero_()
    if tangent.layout is torch.strided and tangent.stride() == stride and not tangent.is_conj() and not tangent.is_neg():
        return tangent
    return torch.empty_strided(size, stride, dtype=tangent.dtype, device=tangent.device).copy_(tangent)
