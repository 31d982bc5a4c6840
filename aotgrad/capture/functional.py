"""Functional wrappers around the fake inputs: leaves, or non-leaves where eager has non-leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.graph.geometry import Geometry
from aotgrad.ir import (
    CallingConvention,
    InputSpec,
    InputState,
    MemberInput,
    SymInput,
    TensorInput,
    ViewStep,
)


class NonLeaf(torch.autograd.Function):
    """The identity: gives a functional tensor a history, as a non-leaf input has one.

    Eager allows in-place ops on a non-leaf, and raises on a leaf that requires grad; the trace must do the same. Records
    nothing in the graph.
    """

    is_of_trace = True

    @staticmethod
    def forward(ctx: Any, primal: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return torch_compat.same_functional(primal)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        return gradient


def make_primals(inputs: Sequence[InputSpec]) -> list[Any]:
    """The live values of the placeholders: functional leaves, or the symbolic numbers themselves."""
    return [make_primal(spec) for spec in inputs if not isinstance(spec, MemberInput)]


def make_primal(spec: TensorInput | SymInput) -> Any:
    if not isinstance(spec, TensorInput):
        return spec.value
    return torch_compat.to_functional(spec.fake).requires_grad_(spec.requires_grad)


def make_arguments(inputs: Sequence[InputSpec], primals: Sequence[Any]) -> list[Any]:
    """The argument of the user's function for each input."""
    arguments = [make_argument(spec, primal) for spec, primal in zip(inputs, primals, strict=False)]
    families: dict[tuple[int, int], torch.Tensor] = {}
    for spec in (spec for spec in inputs if isinstance(spec, MemberInput)):
        root = arguments[spec.base] if spec.attached else families.get((spec.base, spec.family))
        if root is None:
            root = families[spec.base, spec.family] = torch_compat.same_functional(primals[spec.base])
        arguments.append(apply_views(spec.views, root))
    return arguments


def make_argument(spec: InputSpec, primal: Any) -> Any:
    """The primal, or a tensor with a history if the input is no leaf."""
    if isinstance(spec, TensorInput) and spec.requires_grad and not spec.is_leaf:
        with torch.enable_grad():
            return NonLeaf.apply(primal)
    return primal


def apply_views(views: Sequence[ViewStep], base: torch.Tensor) -> torch.Tensor:
    """The view of `base`, which autograd tracks in any grad mode."""
    with torch.enable_grad():
        for view in views:
            base = view.op(base, *view.args)
    return base


def input_state(value: Any) -> InputState | None:
    """The state of a functional argument before the function runs, to compare with afterwards."""
    if not isinstance(value, torch.Tensor):
        return None
    version = 0 if value.is_inference() else value._version
    history = value.grad_fn if value._base is None else value._base.grad_fn
    if value.layout is not torch.strided:
        return InputState(version, history, Geometry.of(value), None, None, value.grad_fn)
    storage, storage_bytes = torch_compat.storage_id(value), value.untyped_storage().nbytes()
    views = len(torch_compat.recorded_views(value)) if torch_compat.is_functional(value) else 0
    return InputState(version, history, Geometry.of(value), storage, storage_bytes, value.grad_fn, views)


class SharedVersions:
    """A handler of calls that keeps version counters of the trace equal if they are one counter in eager."""

    functions = None

    def __init__(self, classes: Sequence[Sequence[torch.Tensor]]) -> None:
        self.classes = classes
        self.versions = [members[0]._version for members in classes]

    def handle(self, _: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        for k, members in enumerate(self.classes):
            raised = sum(member._version - self.versions[k] for member in members)
            if raised:
                self.versions[k] += raised
                for member in members:
                    torch_compat.raise_version(member, self.versions[k], 0)
        return result


def shared_versions(convention: CallingConvention, arguments: Sequence[Any]) -> SharedVersions | None:
    """`SharedVersions` for the inputs that need it, if there are any."""
    classes = [distinct_counters([arguments[k] for k in members]) for members in convention.shared_versions]
    classes = [members for members in classes if len(members) > 1]
    return SharedVersions(classes) if classes else None


def distinct_counters(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One tensor for each version counter."""
    distinct: list[torch.Tensor] = []
    for tensor in tensors:
        if not any(torch_compat.share_version(tensor, other) for other in distinct):
            distinct.append(tensor)
    return distinct
