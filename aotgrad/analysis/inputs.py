"""What the function did to each input: `Capture` -> `InputAliasInfo` for every tensor input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.analysis.views import AS_STRIDED, chain_from
from aotgrad.errors import EagerError, UnsupportedMutationError
from aotgrad.ir import Capture, Geometry, InputAliasInfo, InputState, MemberInput, MutationType, SyntheticBase, TensorInput


def analyze_inputs(capture: Capture) -> tuple[InputAliasInfo | None, ...]:
    """One entry an input; `None` where the input is no argument, or no tensor."""
    infos = tuple(_analyze(capture, index) for index in range(len(capture.inputs)))
    reject_new_history_of_shared_memory(capture, infos)
    reject_moved_history(capture, infos)
    return infos


def _analyze(capture: Capture, index: int) -> InputAliasInfo | None:
    before = capture.before[index]
    if before is None or isinstance(capture.inputs[index], SyntheticBase):
        return None
    argument = capture.arguments[index]
    reject_replaced_storage(index, argument, before)
    reject_changed_gradient_state(capture, index)
    reject_forbidden_change(capture, index)
    mutation = mutation_type(capture, index, before)
    version_bumps = 0 if argument.is_inference() else argument._version - before.version
    if version_bumps and not mutation.data:
        reject_partly_hidden_change(capture, index, version_bumps)
    if mutation.metadata:
        reject_reshaped_member(capture, index)
    if mutation is MutationType.DATA_AND_METADATA:
        reject_other_elements(capture, index, before)
        reject_hidden_change(capture, index)
    if mutation.data or (version_bumps and not mutation.metadata):
        reject_several_elements_in_one_place(capture, index)
    hidden = history_of(argument) is before.grad_fn
    if capture.grad_mode_before and version_bumps and hidden:
        reject_changed_view(capture, index, mutation)
    return InputAliasInfo(
        mutation=mutation,
        hidden_from_autograd=hidden,
        version_bumps=version_bumps,
        requires_grad_after=argument.requires_grad,
        geometry=geometry_in_caller(capture, index) if mutation.metadata else None,
    )


def reject_new_history_of_shared_memory(capture: Capture, infos: Sequence[InputAliasInfo | None]) -> None:
    """Raise if memory that two inputs share comes to require grad: a write to each would have to be one write.

    Raises:
        UnsupportedMutationError: names both inputs.
    """
    first: dict[int, int] = {}
    for index, (spec, info) in enumerate(zip(capture.inputs, infos, strict=True)):
        if not isinstance(spec, MemberInput) or capture.inputs[spec.base].requires_grad or not info.carries_gradient:
            continue
        if (other := first.setdefault(spec.base, index)) != index:
            raise UnsupportedMutationError(
                f"inputs {other} and {index} share memory and come to require grad, as it is changed in place by what "
                "requires grad; pass a clone() of one of them"
            )


def reject_moved_history(capture: Capture, infos: Sequence[InputAliasInfo | None]) -> None:
    """Raise if an input has its size changed, seen by autograd, that another one may be a view of, or a view of the same.

    Raises:
        UnsupportedMutationError: eager makes the history of the other one anew.
    """
    for members in capture.convention.shared_versions:
        with_grad = [index for index in members if capture.inputs[index].requires_grad]
        moved = [
            k for k in with_grad if infos[k].mutation is MutationType.METADATA_ONLY and not infos[k].hidden_from_autograd
        ]
        if moved and len(with_grad) > 1:
            raise UnsupportedMutationError(
                f"input {moved[0]} has its size or stride changed in place (t_, unsqueeze_, ...), and another input is a "
                "view of the same tensor, whose history changes with it; use t(), unsqueeze(), ..., or pass a clone()"
            )


def history_of(argument: torch.Tensor) -> Any:
    """The `grad_fn` of an argument, or of the tensor that it is a view of."""
    return argument.grad_fn if argument._base is None else argument._base.grad_fn


def geometry_in_caller(capture: Capture, index: int) -> Geometry:
    """Where an input lies after the call: the traced value may lie elsewhere, if its data was mutated too."""
    argument, fake, made_for = capture.arguments[index], capture.inputs[index].fake, capture.views_made_for(index)
    with torch_compat.hidden_tracing_modes(), torch.no_grad():
        return Geometry.of(torch_compat.with_recorded_views(argument, fake, skipped=made_for))


def reject_replaced_storage(index: int, argument: torch.Tensor, before: InputState) -> None:
    """Raise if the input no longer lies in the storage that it came with.

    Raises:
        UnsupportedMutationError: after `swap_tensors(x, y)`, or a `resize_` beyond the storage.
    """
    if before.storage is None:
        return
    if torch_compat.storage_id(argument) != before.storage:
        how = "was given another storage, by swap_tensors(); use x.copy_(...)"
    elif not statically_fits(argument, before.storage_bytes):
        how = "was resized beyond its storage; allocate it large enough before the call"
    else:
        return
    raise UnsupportedMutationError(f"input {index} {how}, or do this outside of the compiled function")


def reject_partly_hidden_change(capture: Capture, index: int, version_bumps: int) -> None:
    """Raise if of several changes of an input's size autograd saw only some: its gradient undoes those.

    Raises:
        UnsupportedMutationError: names the input.
    """
    node, end = capture.arguments[index].grad_fn, capture.before[index].grad_fn
    seen = 0
    while node is not None and node is not end and node.next_functions:
        node, seen = node.next_functions[0][0], seen + 1
    if capture.arguments[index]._base is None and node is end and 0 < seen < version_bumps:
        raise UnsupportedMutationError(
            f"input {index} has its size or stride changed in place (t_, unsqueeze_, ...) several times, some of them under "
            "no_grad, so that its gradient would have another size; use t(), unsqueeze(), ... instead"
        )


def reject_reshaped_member(capture: Capture, index: int) -> None:
    """Raise if the owner of memory that other inputs share and that is written to has its size changed, and a gradient.

    Raises:
        UnsupportedMutationError: its gradient is that of the shared memory, whose size stays.
    """
    spec = capture.inputs[index]
    if not isinstance(spec, MemberInput) or not spec.requires_grad:
        return
    base = capture.inputs[spec.base]
    if spec.attached and not base.through_base and capture.inputs[base.member] is spec:
        raise UnsupportedMutationError(
            f"input {index} requires grad, has its size or stride changed in place (t_, unsqueeze_, ...), and shares memory "
            "with another input, and one of the two is written to; use t(), unsqueeze(), ..., or pass a clone()"
        )


def reject_hidden_change(capture: Capture, index: int) -> None:
    """Raise if autograd saw neither the writes to an input nor the changes of its size: its gradient has the new size.

    Raises:
        UnsupportedMutationError: names the input.
    """
    argument = capture.arguments[index]
    if argument.requires_grad and history_of(argument) is capture.before[index].grad_fn:
        raise UnsupportedMutationError(
            f"input {index} requires grad, and both its values and its size or stride are changed in place under no_grad; "
            "use t(), unsqueeze(), ... instead of t_(), unsqueeze_(), ..."
        )


def reject_other_elements(capture: Capture, index: int, before: InputState) -> None:
    """Raise if an input that is written to comes to be made of other elements of its memory: those that it had are lost.

    Raises:
        UnsupportedMutationError: after `x.as_strided_(...)`, or a `resize_` within the storage.
    """
    argument = capture.arguments[index]
    _, steps = chain_from(capture.trace.node_of(argument))
    restrided = any(step.op is AS_STRIDED for step in steps[capture.views_made_for(index) :])
    if restrided or not torch_compat.known_equal([argument.numel()], [math.prod(before.geometry.size)]):
        raise UnsupportedMutationError(
            f"input {index} is changed in place, and by as_strided_() or resize_() comes to show other elements of its "
            "memory; do one of the two outside of the compiled function"
        )


def reject_changed_gradient_state(capture: Capture, index: int) -> None:
    """Raise if the function changed what autograd knows of an input, other than by a recorded in-place op.

    Raises:
        UnsupportedMutationError: after `x.requires_grad_()`, `x.detach_()`, or a `backward()` inside.
    """
    spec, argument = capture.inputs[index], capture.arguments[index]
    if argument.grad_fn is None and argument.requires_grad != spec.requires_grad:
        how = "has its requires_grad changed, by `requires_grad_()` or `detach_()`"
    elif isinstance(spec, TensorInput) and capture.primals[index].is_leaf and capture.primals[index].grad is not None:
        how = "gets a gradient accumulated, by a `backward()` inside; use torch.autograd.grad and return the gradient"
    else:
        return
    raise UnsupportedMutationError(f"input {index} {how}; do this outside of the compiled function")


def reject_several_elements_in_one_place(capture: Capture, index: int) -> None:
    """Raise if the data of an expanded input is changed: a graph computes its elements apart.

    Raises:
        UnsupportedMutationError: names the input.
    """
    if isinstance(capture.inputs[index], MemberInput):
        return  # it sees a write to another member of the base
    fake = capture.inputs[index].fake
    if fake.layout is torch.strided and may_overlap_itself(fake.size(), fake.stride()):
        raise UnsupportedMutationError(
            f"input {index} is expanded or unfolded, so that several of its elements may be the same memory, and is "
            "changed in place; change the tensor that it was made from, or pass a clone()"
        )


def may_overlap_itself(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether several elements may be the same memory: not if the strides are nested.

    Where symbolic numbers do not say so by themselves, the answer is a guard.
    """
    if 0 in sizes:
        return False
    reach = 0
    for step, size in sorted((step, size) for size, step in zip(sizes, strides, strict=True) if size > 1):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def sizes_in_group(member: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Size and stride of an argument that shares memory: static, also where those of others are symbolic."""
    return tuple(map(int, member.size())), tuple(map(int, member.stride()))


def reject_forbidden_change(capture: Capture, index: int) -> None:
    """Raise if the function changed a view, seen by autograd, that eager does not let it change. In the trace it is no view.

    Raises:
        EagerError
    """
    spec = capture.inputs[index]
    is_seen = history_of(capture.arguments[index]) is not capture.before[index].grad_fn
    if not isinstance(spec, TensorInput) or not is_seen:
        return
    if spec.is_view_of_leaf:
        raise EagerError("a view of a leaf Variable that requires grad is being used in an in-place operation.")
    if spec.is_forbidden_after_a_write:
        raise EagerError("a view that was made under no_grad, or with others, is being modified inplace with grad mode on.")


def reject_changed_view(capture: Capture, index: int, mutation: MutationType) -> None:
    """Raise if an input was changed unseen by autograd, and eager makes its history anew then. In the trace it is no view.

    Raises:
        UnsupportedMutationError: names the input.
    """
    spec = capture.inputs[index]
    if not isinstance(spec, TensorInput):
        return
    if spec.is_forbidden_after_a_write:
        raise UnsupportedMutationError(
            f"input {index} is a view that was made under no_grad, or with others (split, unbind, ...), and is changed in "
            "place under no_grad, after which autograd lets nobody use it; pass a clone()"
        )
    if spec.is_view and mutation.metadata:
        raise UnsupportedMutationError(
            f"input {index} is a view that requires grad, and its size or stride is changed in place under no_grad (t_, "
            "unsqueeze_, ...); use t(), unsqueeze(), ... instead"
        )


def statically_fits(tensor: torch.Tensor, storage_bytes: Any) -> bool:
    """Whether the last element of a tensor lies within `storage_bytes`. Symbolic sizes cannot have been resized."""
    if tensor.numel() == 0 or torch_compat.is_symbolic(tensor):
        return True
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    return (last + 1) * tensor.element_size() <= storage_bytes


def mutation_type(capture: Capture, index: int, before: InputState) -> MutationType:
    """Data was mutated if the current value is no view of the placeholder; metadata, if the geometry differs.

    A tensor whose elements overlap each other cannot have been written to: it only sees what was written to another one.
    """
    spec = capture.inputs[index]
    only_sees = isinstance(spec, MemberInput) and may_overlap_itself(*sizes_in_group(spec.fake))
    placeholder = capture.placeholder_of(index)
    root, _ = chain_from(capture.trace.node_of(capture.arguments[index]))
    data = root is not placeholder and not only_sees
    metadata = Geometry.of(capture.arguments[index]) != before.geometry
    return {
        (False, False): MutationType.NONE,
        (False, True): MutationType.METADATA_ONLY,
        (True, False): MutationType.DATA,
        (True, True): MutationType.DATA_AND_METADATA,
    }[data, metadata]
