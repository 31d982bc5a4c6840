"""Functional wrappers around the fake inputs: leaves, and non-leaves where eager has them."""

from __future__ import annotations

from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.ir import Geometry, InputSpec, InputState, TensorInput


class NonLeaf(torch.autograd.Function):
    """The identity: makes a functional tensor that has a history, as an input which is not a leaf has.

    In-place ops on such an input are legal in eager, on a leaf that requires grad they raise; the trace must see the
    same. Records nothing in the graph.
    """

    @staticmethod
    def forward(ctx: Any, primal: torch.Tensor) -> torch.Tensor:
        return torch_compat.to_functional(torch_compat.from_functional(primal))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def make_primal(spec: InputSpec) -> Any:
    """The live value of a placeholder: a functional leaf, or the symbolic number itself."""
    if not isinstance(spec, TensorInput):
        return spec.value
    return torch_compat.to_functional(spec.fake).requires_grad_(spec.requires_grad)


def make_argument(spec: InputSpec, primal: Any) -> Any:
    """What the user's function gets for `primal`."""
    if isinstance(spec, TensorInput) and spec.requires_grad and not spec.is_leaf:
        with torch.enable_grad():
            return NonLeaf.apply(primal)
    return primal


def input_state(value: Any) -> InputState | None:
    """What to compare a functional argument with after the function ran."""
    if not isinstance(value, torch.Tensor):
        return None
    version = 0 if value.is_inference() else value._version
    if value.layout is not torch.strided:
        return InputState(version, value.grad_fn, Geometry.of(value), None, None)
    storage_bytes = value.untyped_storage().nbytes()
    return InputState(version, value.grad_fn, Geometry.of(value), torch_compat.storage_id(value), storage_bytes)
