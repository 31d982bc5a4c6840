"""Function modes of a trace, for what no op does: another storage by `x.data = y`, another size in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode

from aotgrad.torch_compat.refusals import ANOTHER_STORAGE, RESHAPED_CONVERSION
from aotgrad.torch_compat.views import is_converted_view, is_forbidden_after_a_write, is_view_of_leaf


class RefusedAssignments(TorchFunctionMode):
    """Refuses `x.data = y`: a traced tensor would not be what it was given."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function == torch.Tensor.data.__set__:
            raise RuntimeError(ANOTHER_STORAGE)
        return function(*args, **(kwargs or {}))


OUT_OF_PLACE = {
    torch.Tensor.squeeze_: torch.Tensor.squeeze,
    torch.Tensor.swapaxes_: torch.Tensor.swapaxes,
    torch.Tensor.swapdims_: torch.Tensor.swapdims,
    torch.Tensor.t_: torch.Tensor.t,
    torch.Tensor.transpose_: torch.Tensor.transpose,
    torch.Tensor.unsqueeze_: torch.Tensor.unsqueeze,
}
"""Changes of a size or stride in place, and the views that show the same."""

RESHAPES = {*OUT_OF_PLACE, torch.Tensor.as_strided_, torch.as_strided_}


VIEW_OF_LEAF = "a view of a leaf Variable that requires grad is being used in an in-place operation."
"""Eager's message."""


class ReshapedViews(TorchFunctionMode):
    """A view whose size or stride is changed in place becomes the view that shows the same, also for autograd.

    Autograd makes the history of such a view anew. In eager it does so from where the view lies by then; of a traced tensor
    it knows only how the view was made. Of a view with another dtype than its base, or conjugated, eager knows no more, and
    its gradients pass the change by: refused. `hidden` are those of the `arguments` of which autograd did not see the
    change. `of_leaves` are views of leaves outside.
    """

    def __init__(self, arguments: Sequence[Any], of_leaves: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self.arguments = {id(argument): k for k, argument in enumerate(arguments)}
        self.hidden: set[int] = set()
        self.of_leaves = {id(argument) for argument in of_leaves}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in RESHAPES and id(args[0]._base) in self.of_leaves and torch.is_grad_enabled():
            raise RuntimeError(VIEW_OF_LEAF)
        if function in RESHAPES and id(args[0]) not in self.arguments and is_converted_view(args[0]):
            raise RuntimeError(RESHAPED_CONVERSION)
        if function in RESHAPES and id(args[0]) in self.arguments and not torch.is_grad_enabled():
            self.hidden.add(self.arguments[id(args[0])])
        if function in OUT_OF_PLACE and may_be_swapped(args[0]):
            with torch.enable_grad():
                swap_tensors(args[0], OUT_OF_PLACE[function](*args, **(kwargs or {})))
            torch.autograd.graph.increment_version(args[0])
            return args[0]
        return function(*args, **(kwargs or {}))


def may_be_swapped(tensor: Any) -> bool:
    """Whether a tensor is a traced view that autograd lets be changed in place."""
    if not isinstance(tensor, FunctionalTensor) or tensor.is_inference() or tensor._base is None:
        return False
    is_refused = torch.is_grad_enabled() and is_view_of_leaf(tensor)
    return not (is_refused or is_forbidden_after_a_write(tensor) or tensor._backward_hooks)


def swap_tensors(one: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange what two tensor objects are. What autograd has saved of them stays what it was."""
    torch._C._swap_tensor_impl(one, other)
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
