"""What a backward cannot compute: nodes whose saved values were overwritten, and the errors that explain the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.errors import AOTGradError, CaptureError, UnsupportedMutationError
from aotgrad.graph.autograd_nodes import autograd_nodes
from aotgrad.joint.effects import LastNode
from aotgrad.slots import Gradient, Primal

OVERWRITTEN = "modified by an inplace operation"
"""Part of the error of a backward that needs an overwritten value."""


class WrapperAtCut(Exception):
    """The gradient at a cut between two segments, or of a plain result, is a tensor subclass that wraps others."""


class OverwrittenValue(Exception):
    """An autograd node needs a value that was changed in place after it was saved; the message is eager's."""

    def __init__(self, node: Any, message: str) -> None:
        super().__init__(message)
        self.node = node


def failing_nodes(roots: Iterable[torch.Tensor], known: Collection[Any] = ()) -> dict[Any, str]:
    """The autograd nodes that visibly raise in a backward, and their messages; without those in `known`."""
    with torch_compat.recomputed_once():
        errors = {node: torch_compat.error_of_saved(node) for node in autograd_nodes(roots) if node not in known}
    return {node: error for node, error in errors.items() if error is not None}


def passed_over(failing: dict[Any, str]) -> dict[Any, str]:
    """Disable the nodes, so that they neither raise nor compute; returns `failing`.

    Raises:
        CaptureError: a saved value needed no gradient, and got one when it was overwritten; or an argument of a checkpointed
            region was changed later.
    """
    for node, message in failing.items():
        try:
            torch_compat.disable_node(node)
        except RuntimeError as error:
            reject_changed_argument(error)
            raise untraceable(message) from error
    return failing


def untraceable(reason: object) -> CaptureError:
    return CaptureError(f"the backward of the function cannot be traced: {reason}")


def reject_changed_argument(error: RuntimeError) -> None:
    """Raise if an argument of a checkpointed region was changed in place later: its saved values are hooked.

    Raises:
        CaptureError: eager's backward raises, too.
    """
    if "hooks have already been set" in str(error):
        raise CaptureError(
            "torch.utils.checkpoint reruns a region in the backward, and a tensor that requires grad and that it was "
            "given is changed in place before, which raises in eager, too; give it a clone()"
        ) from error


class WrappedGradient(CaptureError):
    """The gradient of a plain tensor is a tensor subclass that wraps others: the graph cannot return it as one tensor."""

    def __init__(self, primal: Primal, gradient: torch.Tensor) -> None:
        super().__init__(f"the gradient of {primal}, a plain tensor, is a {type(gradient).__name__}")
        self.primal, self.gradient = primal, gradient


def reject_wrapped_gradients(gradients: Mapping[Gradient, torch.Tensor | None]) -> None:
    """Raises WrappedGradient or WrapperAtCut."""
    for slot, value in gradients.items():
        if value is None or not torch_compat.is_wrapper_subclass(value):
            continue
        if isinstance(slot.of, Primal):
            raise WrappedGradient(slot.of, value)
        raise WrapperAtCut(f"the {slot} is a {type(value).__name__}, a tensor subclass that wraps others")


def reject_foreign_change(error: RuntimeError) -> None:
    """Raise if a tensor unknown to the trace was changed.

    Raises:
        CaptureError: the change would happen once, while tracing.
    """
    if "mutating a non-functional tensor" in str(error):
        raise CaptureError(
            "the backward of an autograd function, or a hook, changes a tensor in place that is no argument of the compiled "
            "function; pass it as an argument, so that the change reaches it on every call"
        ) from error


def reject_hidden_reshape(error: RuntimeError) -> None:
    """Raise if the size of a tensor with a history was changed in place, hidden from autograd.

    Raises:
        UnsupportedMutationError: eager's backward through it raises too, or gives a gradient of the old size.
    """
    if "invalid gradient at index" in str(error):
        raise UnsupportedMutationError(
            "a tensor that has a gradient had its size changed in place (t_, unsqueeze_, ...) under no_grad, so that no "
            "gradient fits it; use t(), unsqueeze(), ... instead"
        ) from error


@contextlib.contextmanager
def explained(last: LastNode) -> Iterator[None]:
    """Explain why a backward cannot be traced.

    Raises:
        OverwrittenValue: a value was changed in place after it was saved.
        UnsupportedMutationError, CaptureError: another reason.
    """
    try:
        yield
    except AOTGradError:
        raise
    except RuntimeError as error:
        if OVERWRITTEN in str(error):
            raise OverwrittenValue(last.node, str(error)) from error
        reject_hidden_reshape(error)
        reject_foreign_change(error)
        raise untraceable(error) from error
