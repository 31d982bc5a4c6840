"""Which views were made before the last write to their memory: autograd makes the history of such a view anew.

    def f(x): view = x.mT; x.mul_(2); return view, x.mT, view * 3

In eager, `x` may be a view itself, of `whole`. The gradients of the first and the last result go past it then, to what the
write made of `whole`; that of the second goes through `x`. In a trace `x` is no view, so autograd does not tell them apart.
At run time the older view is made before the write, also where it is not returned, but used.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.ir import InputSpec, MemberInput, TensorInput


class ViewVersions:
    """A handler of calls that records the version of each view when it is made, and when a non-view is computed from it."""

    functions = None

    def __init__(self) -> None:
        self.made: dict[int, tuple[weakref.ref, int]] = {}
        self.used: dict[int, tuple[torch.Tensor, int]] = {}

    def handle(self, function: Any, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        older = [value for value in args if self.is_older(value)]
        result = call(*args, **kwargs)
        values = result if isinstance(result, (tuple, list)) else (result,)
        differentiable = [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]
        if differentiable:
            self.used.update({id(view): (view, view._version) for view in older})
        for view in filter(torch_compat.is_differentiable_view, differentiable):
            if id(view) not in self.made or is_seen_reshape(function):
                self.made[id(view)] = weakref.ref(view, self.forget(id(view))), view._version
        return result

    def forget(self, key: int) -> Any:
        return lambda _: self.made.pop(key, None)

    def is_older(self, value: Any) -> bool:
        """Whether a tensor is a view whose memory was written to since, also through itself."""
        return id(value) in self.made and self.made[id(value)][1] != value._version


def is_seen_reshape(function: Any) -> bool:
    """Whether a call changes the size or stride of a view so that its history goes on, and is not made anew."""
    return function in torch_compat.RESHAPES and torch.is_grad_enabled()


def view_versions(inputs: Sequence[InputSpec]) -> ViewVersions | None:
    """`ViewVersions`, if an input is a view with a history; other views need none."""
    return ViewVersions() if any(map(may_be_passed_by, inputs)) else None


def may_be_passed_by(spec: InputSpec) -> bool:
    match spec:
        case TensorInput():
            return spec.requires_grad and spec.is_view and not spec.is_leaf
        case MemberInput():
            return spec.requires_grad and spec.attached
    return False


def older_views(noted: ViewVersions | None, outputs: Sequence[Any]) -> frozenset[int]:
    """The positions of the outputs that are older than a write to their memory."""
    return frozenset() if noted is None else frozenset(k for k, value in enumerate(outputs) if noted.is_older(value))


def used_views(noted: ViewVersions | None, arguments: Sequence[Any], outputs: Sequence[Any]) -> list[torch.Tensor]:
    """The views of arguments, no outputs, that were used after the last write to their memory and are older than that."""
    if noted is None or not noted.used:
        return []
    memory = {torch_compat.storage_id(value) for value in arguments if isinstance(value, torch.Tensor)}
    known = {id(value) for value in (*arguments, *outputs)}
    last = [view for view, version in noted.used.values() if version == view._version and id(view) not in known]
    return [view for view in last if torch_compat.storage_id(view) in memory]
