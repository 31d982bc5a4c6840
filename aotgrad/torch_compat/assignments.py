"""Handlers of calls in a trace, for what no op does: another storage by `x.data = y`, another size in place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

from aotgrad.torch_compat.memory import raise_version
from aotgrad.torch_compat.refusals import ANOTHER_STORAGE, RESHAPED_CONVERSION
from aotgrad.torch_compat.views import is_converted_view, is_forbidden_after_a_write, is_view_of_leaf

_SHALLOW_COPY = getattr(torch.ops.aten, "shallow_copy_data_", None)
"""What Dynamo of torch >= 2.15 makes of `x.data = y`."""
_SHALLOW_COPIES = () if _SHALLOW_COPY is None else (_SHALLOW_COPY, _SHALLOW_COPY.default)


class Assignments:
    """`x.data = y` and `x.set_(y)`: from then on, the two have one memory, and are laid out alike.

    Autograd does not see it. `x` keeps its version counter, which `set_` bumps. A different dtype or device is refused, and
    a different layout if `x` requires grad.

    Attributes:
        mode: the functional mode of the trace.
        arguments: the position of each argument, by its id.
        before: the memory that an assigned argument had, by position.
    """

    functions = frozenset({torch.Tensor.data.__set__, *_SHALLOW_COPIES})

    def __init__(self, mode: FunctionalTensorMode, arguments: Sequence[Any]) -> None:
        self.mode = mode
        self.arguments = {id(argument): k for k, argument in enumerate(arguments)}
        self.before: dict[int, torch.Tensor] = {}

    def __enter__(self) -> Assignments:
        self.mode._assign = self.set
        return self

    def __exit__(self, *error: Any) -> None:
        self.mode._assign = None

    def handle(self, function: Any, call: Callable[..., Any], /, target: Any, source: Any) -> Any:
        self.assign(target, source)
        return target if function in _SHALLOW_COPIES else None

    def set(self, target: Any, source: Any) -> Any:
        """`assign` for `set_`, below autograd."""
        if target.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(ANOTHER_STORAGE)
        self.assign(target, source)
        return target

    def assign(self, target: Any, source: Any) -> None:
        """Give `target` the memory of `source`.

        Raises:
            RuntimeError: `target` is a view, belongs to another trace, or does not match `source`.
        """
        with torch._C.DisableTorchFunction():
            if not _may_have_the_memory_of(target, source):
                raise RuntimeError(ANOTHER_STORAGE)
            if id(target) in self.arguments:
                before = FunctionalTensor(target.elem, self.mode)
                torch._functionalize_unsafe_set(before, target)
                self.before.setdefault(self.arguments[id(target)], before)
            target.elem = source.elem
            torch._functionalize_unsafe_set(target, source)
            if not _are_laid_out_alike(target, source):
                _lay_out_alike(target, source)


def _may_have_the_memory_of(target: Any, source: Any) -> bool:
    """Whether `target` is a traced tensor that is no view, and its gradient, if any, also fits `source`."""
    if not (isinstance(target, FunctionalTensor) and isinstance(source, FunctionalTensor)) or target._base is not None:
        return False
    if target.layout is not torch.strided or source.layout is not torch.strided:
        return False
    if target.is_inference() or source.is_inference():
        return False
    facts = [(t.dtype, t.device, t.is_conj(), t.is_neg()) for t in (target, source)]
    return facts[0] == facts[1] and (_are_laid_out_alike(target, source) or not target.requires_grad)


def _are_laid_out_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return _layout_of(one) == _layout_of(other)


def _layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.storage_offset()


def _lay_out_alike(target: torch.Tensor, source: torch.Tensor) -> None:
    """Give a wrapper the sizes and strides of another one, in place, hidden from autograd and the version counter."""
    version, is_included = target._version, torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(True)
    try:
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            torch.ops.aten.set_.source_Tensor(target, source)
    finally:
        torch._C._set_meta_in_tls_dispatch_include(is_included)
        raise_version(target, version, 0)


OUT_OF_PLACE = {
    torch.Tensor.squeeze_: torch.Tensor.squeeze,
    torch.Tensor.swapaxes_: torch.Tensor.swapaxes,
    torch.Tensor.swapdims_: torch.Tensor.swapdims,
    torch.Tensor.t_: torch.Tensor.t,
    torch.Tensor.transpose_: torch.Tensor.transpose,
    torch.Tensor.unsqueeze_: torch.Tensor.unsqueeze,
}
"""In-place changes of size or stride, and the views with the same result."""

RESHAPES = {*OUT_OF_PLACE, torch.Tensor.as_strided_, torch.as_strided_}


VIEW_OF_LEAF = "a view of a leaf Variable that requires grad is being used in an in-place operation."
"""Eager's message."""


class ReshapedViews:
    """A view whose size or stride is changed in place becomes the view that shows the same, also for autograd.

    Autograd regenerates the history of such a view. Eager does so from the view's current geometry; for a traced tensor,
    autograd only knows how the view was created. A view that is conjugated or has another dtype than its base is refused
    if its geometry changes: there, eager does not know more, and its gradients ignore the change.

    Attributes:
        arguments: the position of each argument, by its id.
        hidden: positions of arguments that changed where autograd did not see it.
        of_leaves: ids of arguments that are views of leaves.
    """

    functions = RESHAPES

    def __init__(self, arguments: Sequence[Any], of_leaves: Sequence[torch.Tensor] = ()) -> None:
        self.arguments = {id(argument): k for k, argument in enumerate(arguments)}
        self.hidden: set[int] = set()
        self.of_leaves = {id(argument) for argument in of_leaves}

    def handle(self, function: Any, call: Callable[..., Any], /, view: Any, *args: Any, **kwargs: Any) -> Any:
        if id(view._base) in self.of_leaves and torch.is_grad_enabled():
            raise RuntimeError(VIEW_OF_LEAF)
        before = _layout_of(view) if id(view) not in self.arguments and is_converted_view(view) else None
        result = self.reshape(function, call, view, *args, **kwargs)
        if before is not None and _layout_of(view) != before:
            raise RuntimeError(RESHAPED_CONVERSION)
        return result

    def reshape(self, function: Any, call: Callable[..., Any], view: Any, *args: Any, **kwargs: Any) -> Any:
        if id(view) in self.arguments and not torch.is_grad_enabled():
            self.hidden.add(self.arguments[id(view)])
        if function not in OUT_OF_PLACE or not may_be_swapped(view):
            return call(view, *args, **kwargs)
        with torch.enable_grad():
            swap_tensors(view, OUT_OF_PLACE[function](view, *args, **kwargs))
        torch.autograd.graph.increment_version(view)
        return view


def may_be_swapped(tensor: Any) -> bool:
    """Whether a tensor is a traced view that autograd allows to change in place."""
    if not isinstance(tensor, FunctionalTensor) or tensor.is_inference() or tensor._base is None:
        return False
    is_refused = torch.is_grad_enabled() and is_view_of_leaf(tensor)
    return not (is_refused or is_forbidden_after_a_write(tensor) or tensor._backward_hooks)


def swap_tensors(one: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange the contents of two tensor objects; what autograd has saved of them stays the same.

    Raises:
        RuntimeError: something in C++ refers to one of them weakly; nothing is exchanged then.
    """
    torch._C._swap_tensor_impl(one, other)
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    for name in _slots_of(type(one)) if type(one) is type(other) else ():
        value, value_of_other = getattr(one, name), getattr(other, name)
        setattr(one, name, value_of_other)
        setattr(other, name, value)


@functools.cache
def _slots_of(kind: type) -> tuple[str, ...]:
    """The attributes that a class of tensors keeps in slots, as `DTensor` does."""
    slots = (vars(base).get("__slots__", ()) for base in kind.__mro__ if base is not torch.Tensor)
    return tuple(name for names in slots for name in ([names] if isinstance(names, str) else names))
