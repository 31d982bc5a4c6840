"""Refuses changes of inputs: a table of conditions and messages.

In: `Change`. Raises for the first condition that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aotgrad.analysis.changes import Change
from aotgrad.errors import EagerError, UnsupportedMutationError
from aotgrad.ir import Capture, InputAliasInfo, InputSpec, MemberInput, MutationType, SymInput


@dataclass(frozen=True)
class Refusal:
    """`message` says what was done to input `{}` and what to do instead. An `EagerError` has eager's message."""

    applies: Callable[[Change], bool]
    message: str
    error: type[Exception] = UnsupportedMutationError


REFUSALS = (
    Refusal(
        Change.lies_in_another_storage,
        "input {} was given another storage, by swap_tensors(); use x.copy_(...), or do this outside of the compiled "
        "function",
    ),
    Refusal(
        Change.is_assigned_with_a_history,
        "input {} is given another memory, by `x.data = ...` or `x.set_(...)`, and requires grad and is changed in place, "
        "or shares memory with another input that is; do one of the two outside of the compiled function",
    ),
    Refusal(
        Change.lies_beyond_its_storage,
        "input {} was resized beyond its storage; allocate it large enough before the call, or do this outside of the "
        "compiled function",
    ),
    Refusal(
        Change.has_another_requires_grad,
        "input {} has its requires_grad changed, by `requires_grad_()` or `detach_()`, and is changed in place besides, or "
        "shares memory with another input that is; do this outside of the compiled function",
    ),
    Refusal(
        Change.has_gained_a_gradient,
        "input {} gets a gradient accumulated, by a `backward()` inside; use torch.autograd.grad and return the gradient, "
        "or list the input in the state of aotgrad.train_step; do this outside of the compiled function",
    ),
    Refusal(
        Change.is_of_a_view_of_a_leaf,
        "a view of a leaf Variable that requires grad is being used in an in-place operation.",
        EagerError,
    ),
    Refusal(
        Change.is_of_a_forbidden_view,
        "a view that was made under no_grad, or with others, is being modified inplace with grad mode on.",
        EagerError,
    ),
    Refusal(
        Change.reshapes_partly_hidden,
        "input {} has its size or stride changed in place (t_, unsqueeze_, ...) several times, some of them under no_grad, "
        "so that its gradient would have another size; use t(), unsqueeze(), ... instead",
    ),
    Refusal(
        Change.reshapes_the_owner_of_shared_memory,
        "input {} requires grad, has its size or stride changed in place (t_, unsqueeze_, ...), and shares memory with "
        "another input, and one of the two is written to; use t(), unsqueeze(), ..., or pass a clone()",
    ),
    Refusal(
        Change.shows_other_elements,
        "input {} is changed in place, and by as_strided_() or resize_() comes to show other elements of its memory; do one "
        "of the two outside of the compiled function",
    ),
    Refusal(
        Change.writes_and_reshapes_hidden,
        "input {} requires grad, its values are changed in place, and its size or stride under no_grad; use t(), "
        "unsqueeze(), ... instead of t_(), unsqueeze_(), ...",
    ),
    Refusal(
        Change.writes_and_reshapes_a_converted_view,
        "input {} requires grad and is a view as another dtype, or conjugated, and both its values and its size or stride "
        "are changed in place; use t(), unsqueeze(), ... instead of t_(), unsqueeze_(), ...",
    ),
    Refusal(
        Change.writes_where_elements_may_overlap,
        "input {} is expanded or unfolded, so that several of its elements may be the same memory, and is changed in place; "
        "change the tensor that it was made from, or pass a clone()",
    ),
    Refusal(
        Change.makes_a_forbidden_view_stale,
        "input {} is a view that was made under no_grad, or with others (split, unbind, ...), and is changed in place under "
        "no_grad, after which autograd lets nobody use it; pass a clone()",
    ),
    Refusal(
        Change.reshapes_a_view_hidden,
        "input {} is a view that requires grad, and its size or stride is changed in place under no_grad (t_, unsqueeze_, "
        "...); use t(), unsqueeze(), ... instead",
    ),
)


def refuse_change(change: Change) -> None:
    """Raise for a change that cannot be repeated on the caller's tensor.

    Raises:
        UnsupportedMutationError: names the argument.
        EagerError: eager does not allow the change either.
    """
    for refusal in REFUSALS:
        if refusal.applies(change):
            raise refusal.error(refusal.message.format(change.capture.convention.argument_of(change.index)))


def refuse_new_history_of_shared_memory(capture: Capture, infos: Sequence[InputAliasInfo | None]) -> None:
    """Raise if the shared memory of two inputs comes to require grad: the writes to both would have to be one write.

    Raises:
        UnsupportedMutationError: names both arguments.
    """
    first: dict[int, int] = {}
    for argument, index in enumerate(capture.convention.order):
        spec, info = capture.inputs[index], infos[index]
        if not isinstance(spec, MemberInput) or info is None or not info.carries_gradient:
            continue
        if requires_grad(capture.inputs[spec.base]):
            continue
        if (other := first.setdefault(spec.base, argument)) != argument:
            raise UnsupportedMutationError(
                f"inputs {other} and {argument} share memory and come to require grad, as it is changed in place by what "
                "requires grad; pass a clone() of one of them"
            )


def refuse_moved_history(capture: Capture, infos: Sequence[InputAliasInfo | None]) -> None:
    """Raise if autograd saw a change of the size of an input that shares its version counter with other inputs.

    Raises:
        UnsupportedMutationError: eager recreates the history of the other inputs.
    """
    for members in capture.convention.shared_versions:
        with_grad = [index for index in members if requires_grad(capture.inputs[index])]
        moved = [k for k in with_grad if (info := infos[k]) is not None and is_moved(info)]
        if moved and len(with_grad) > 1:
            raise UnsupportedMutationError(
                f"input {capture.convention.argument_of(moved[0])} has its size or stride changed in place (t_, unsqueeze_, "
                "...), and another input is a view of the same tensor, whose history changes with it; use t(), unsqueeze(), "
                "..., or pass a clone()"
            )


def requires_grad(spec: InputSpec) -> bool:
    return not isinstance(spec, SymInput) and spec.requires_grad


def is_moved(info: InputAliasInfo) -> bool:
    """Whether only the size or stride of an input changed, and autograd saw it."""
    return info.mutation is MutationType.METADATA_ONLY and not info.hidden_from_autograd
