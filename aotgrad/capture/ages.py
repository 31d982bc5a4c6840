"""Which views were made before the last write to their memory: autograd makes the history of such a view anew.

    def f(x): view = x.mT; x.mul_(2); return view, x.mT

In eager, `x` may be a view itself, of `whole`. The gradient of the first result then goes from `whole`, as it was written,
past `x`; that of the second goes through `x`. In a trace `x` is no view, so autograd does not tell them apart.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from aotgrad import torch_compat
from aotgrad.ir import InputSpec, MemberInput, TensorInput


class NotedViews(TorchFunctionMode):
    """Notes the version of each view when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[int, tuple[weakref.ref, int]] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for view in views_in(result):
            self.versions.setdefault(id(view), (weakref.ref(view, self.forget(id(view))), view._version))
        return result

    def forget(self, key: int) -> Any:
        return lambda _: self.versions.pop(key, None)

    def older(self, outputs: Sequence[Any]) -> frozenset[int]:
        """The positions of the views whose memory was written to since, also through themselves."""
        made = {k: self.versions[id(output)][1] for k, output in enumerate(outputs) if id(output) in self.versions}
        return frozenset(k for k, version in made.items() if version != outputs[k]._version)


def views_in(result: Any) -> Iterator[torch.Tensor]:
    """The views with a history among what a function returned: one tensor, or several."""
    values = result if isinstance(result, (tuple, list)) else (result,)
    return (v for v in values if isinstance(v, torch.Tensor) and v.requires_grad and torch_compat.is_differentiable_view(v))


def noted(inputs: Sequence[InputSpec]) -> AbstractContextManager[NotedViews | None]:
    """`NotedViews`, if an input is a view with a history: of others, it makes no difference."""
    return NotedViews() if any(map(may_be_passed_by, inputs)) else contextlib.nullcontext()


def may_be_passed_by(spec: InputSpec) -> bool:
    match spec:
        case TensorInput():
            return spec.requires_grad and spec.is_view and not spec.is_leaf
        case MemberInput():
            return spec.requires_grad and spec.attached
    return False
