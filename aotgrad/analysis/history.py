"""The autograd history of a view: the nodes that its gradient passes, and whether autograd allows its use."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.errors import UnsupportedAliasingError


def reject_forbidden_view(position: int, value: Any) -> None:
    """Raise for a view whose history is stale or forbidden by autograd.

    Raises:
        UnsupportedAliasingError: its base was changed in place after it was made.
    """
    if not isinstance(value, torch.Tensor):
        return
    if torch_compat.is_stale_view(value):
        raise UnsupportedAliasingError(
            f"output {position} is a view whose base had its size or stride changed in place (t_, unsqueeze_, ...) after "
            "the view was made; make the view after that change, or use t(), unsqueeze(), ... instead"
        )
    try:
        _ = value.grad_fn
    except RuntimeError as error:
        raise UnsupportedAliasingError(
            f"output {position} is a view that autograd does not let anybody use: after it was made, under no_grad or as "
            "one of several views (split, unbind, ...), its base was changed in place; return a clone() of it, or change "
            "the base first"
        ) from error


def stops_before(value: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether the history of a view ends at another leaf than its base."""
    node: Any = value.grad_fn
    while node is not None and node is not base.grad_fn:
        if hasattr(node, "variable"):
            return node.variable is not base
        if not _is_view_node(node):
            return False
        node = node.next_functions[0][0]
    return node is None and value.grad_fn is not None and base.requires_grad


def view_history(value: torch.Tensor) -> Iterator[Any]:
    """The autograd nodes behind a view's own node, as long as they are nodes of views."""
    node = value.grad_fn
    while node is not None and _is_view_node(node) and node.next_functions:
        node = node.next_functions[0][0]
        yield node


def is_inside_nested_tensor(value: torch.Tensor) -> bool:
    """Whether a view has the values of a nested tensor: torch cannot differentiate that of a jagged one."""
    return any("NestedTensor" in node.name() for node in (value.grad_fn, *view_history(value)) if node is not None)


def is_custom_function_view(value: torch.Tensor, stops: Collection[Any]) -> bool:
    """Whether the history of an alias leads through a user's `autograd.Function` before it reaches one of `stops`."""
    node = value.grad_fn if value.requires_grad else None
    while node is not None and node not in stops:
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        if not _is_view_node(node):
            return False
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def _is_view_node(node: Any) -> bool:
    return node.name().startswith(VIEW_NODE_NAMES)


VIEW_NODE_NAMES = (
    *("Alias", "AsStrided", "Chunk", "Conj", "Diagonal", "Expand", "Imag", "Narrow", "NegView", "Permute", "Real"),
    *("ReshapeAlias", "SelectBackward", "SliceBackward", "Split", "Squeeze", "TBackward", "Transpose", "Unbind", "Unfold"),
    *("Unsqueeze", "View"),
)
"""The names of autograd nodes of view ops start so: autograd offers no other way to recognize them."""
