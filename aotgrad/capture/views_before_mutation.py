"""Finds views that were made before the last write to their memory: autograd recreates the history of such a view.

    def f(x): view = x.mT; x.mul_(2); return view, x.mT, view * 3

In eager, `x` may be a view of another tensor, `whole`. The gradients of the first and the last result then bypass `x`: they
go to the new history of `whole`. The gradient of the second goes through `x`. In a trace `x` is no view, so autograd does
not tell them apart. At run time the older view is made before the write, also if it is used but not returned.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.ir import InputSpec, MemberInput, TensorInput

STRIDE_IN_PLACE = (torch.Tensor.as_strided_, torch.as_strided_)
"""They may show memory that the view did not show, so the history from before is not that of a new view of the base.

Other changes of the size or stride show the same elements, and a new history has the same gradients.
"""


class ViewVersions:
    """A handler of calls that records the version of each view when it is made, and when a non-view is computed from it.

    `strided`: the views that `as_strided_` was called on.
    """

    functions = None

    def __init__(self) -> None:
        self.made: dict[int, tuple[weakref.ref, int]] = {}
        self.used: dict[int, tuple[torch.Tensor, int]] = {}
        self.strided: set[int] = set()

    def handle(self, function: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        older = [value for value in pytree.tree_leaves((args, kwargs)) if self.is_older(value)]
        result = call(*args, **kwargs)
        values = result if isinstance(result, (tuple, list)) else (result,)
        differentiable = [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]
        if differentiable:
            self.used.update({id(view): (view, view._version) for view in older})
        for view in filter(torch_compat.is_differentiable_view, differentiable):
            if function in STRIDE_IN_PLACE:
                self.strided.add(id(view))
            if id(view) not in self.made or (id(view) in self.strided and is_seen_reshape(function)):
                self.made[id(view)] = weakref.ref(view, self.forget(id(view))), view._version
        return result

    def forget(self, key: int) -> Any:
        def forget(_: Any) -> None:
            self.made.pop(key, None)
            self.strided.discard(key)

        return forget

    def is_older(self, value: Any) -> bool:
        """Whether a tensor is a view whose memory was written to since it was made, also through the view itself."""
        return id(value) in self.made and self.made[id(value)][1] != value._version


def is_seen_reshape(function: Any) -> bool:
    """Whether a call changes the size or stride of a view and autograd sees it: the view's history continues."""
    return function in torch_compat.RESHAPES and torch.is_grad_enabled()


def view_versions(inputs: Sequence[InputSpec]) -> ViewVersions | None:
    """`ViewVersions` if an input is a view with a history. Without such an input, the order does not matter."""
    return ViewVersions() if any(map(may_be_bypassed, inputs)) else None


def may_be_bypassed(spec: InputSpec) -> bool:
    match spec:
        case TensorInput():
            return spec.requires_grad and spec.is_view and not spec.is_leaf
        case MemberInput():
            return spec.requires_grad and spec.attached
    return False


def older_views(noted: ViewVersions | None, outputs: Sequence[Any]) -> frozenset[int]:
    """The positions of the outputs that are views older than a write to their memory."""
    return frozenset() if noted is None else frozenset(k for k, value in enumerate(outputs) if noted.is_older(value))


def reject_strided_views(noted: ViewVersions | None, arguments: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise for a returned view of an argument on which the function called `as_strided_`.

    Its gradient goes to the history that the argument had before. A view of the argument can only be made with the new one.

    Raises:
        UnsupportedAliasingError: names the output.
    """
    if noted is None or not noted.strided:
        return
    memory = {torch_compat.storage_id(value) for value in arguments if isinstance(value, torch.Tensor)}
    kept = noted.strided.difference(map(id, arguments))
    for position, value in enumerate(outputs):
        if id(value) in kept and torch_compat.storage_id(value) in memory:
            raise UnsupportedAliasingError(
                f"output {position} is a view of an input that is a view itself, and its size or stride was changed in "
                "place by as_strided_(); use as_strided() instead"
            )


def used_views(noted: ViewVersions | None, arguments: Sequence[Any], outputs: Sequence[Any]) -> list[torch.Tensor]:
    """Views of arguments, not returned, that are older than the last write to their memory and were used after it."""
    if noted is None or not noted.used:
        return []
    memory = {torch_compat.storage_id(value) for value in arguments if isinstance(value, torch.Tensor)}
    known = {id(value) for value in (*arguments, *outputs)}
    last = [view for view, version in noted.used.values() if version == view._version and id(view) not in known]
    return [view for view in last if torch_compat.storage_id(view) in memory]
