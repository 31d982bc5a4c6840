"""Properties of the change of one input, from its states before and after the function ran.

In: a `Capture` and the position of a tensor input. Out: answers for `inputs.py` and `refusals.py`, which decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.analysis.views import AS_STRIDED, chain_from
from aotgrad.graph.geometry import Geometry, may_overlap_itself
from aotgrad.ir import Capture, InputState, MemberInput, MutationType, SyntheticBase, TensorInput


@dataclass(frozen=True)
class Change:
    """The change of input `index`, which is a tensor and an argument."""

    capture: Capture
    index: int

    @property
    def spec(self) -> TensorInput | MemberInput:
        spec = self.capture.inputs[self.index]
        assert isinstance(spec, (TensorInput, MemberInput))
        return spec

    @property
    def argument(self) -> torch.Tensor:
        """The live value after the function ran."""
        return self.capture.arguments[self.index]

    @property
    def before(self) -> InputState:
        state = self.capture.before[self.index]
        assert state is not None
        return state

    @property
    def is_member(self) -> bool:
        """Whether the input shares memory with others, and one of them is written."""
        return isinstance(self.spec, MemberInput)

    @property
    def version_bumps(self) -> int:
        return 0 if self.argument.is_inference() else self.argument._version - self.before.version

    @property
    def is_hidden(self) -> bool:
        """Whether the change was hidden from autograd."""
        return history_of(self.argument) is self.before.grad_fn

    @cached_property
    def mutation(self) -> MutationType:
        """Data is mutated if the current value is no view of the placeholder; metadata, if the geometry differs.

        A tensor with overlapping elements cannot have been written itself: it shows a write to another tensor.
        """
        if self.is_assigned:
            return MutationType.NONE
        only_sees = self.is_member and may_overlap_itself(*sizes_in_group(self.spec.fake))
        root, _ = chain_from(self.capture.trace.node_of(self.argument))
        data = root is not self.capture.placeholder_of(self.index) and not only_sees
        metadata = Geometry.of(self.argument) != self.before.geometry
        return {
            (False, False): MutationType.NONE,
            (False, True): MutationType.METADATA_ONLY,
            (True, False): MutationType.DATA,
            (True, True): MutationType.DATA_AND_METADATA,
        }[data, metadata]

    @property
    def geometry(self) -> Geometry:
        """The geometry after the call; that of the traced value may differ if data was mutated, too."""
        with torch_compat.hidden_tracing_modes(), torch.no_grad():
            return Geometry.of(torch_compat.with_recorded_views(self.argument, self.spec.fake, skipped=self.before.views))

    # -- questions of `refusals.py`

    @property
    def is_assigned(self) -> bool:
        """Whether the input was given other memory."""
        return self.index in self.capture.assigned

    def is_assigned_with_a_history(self) -> bool:
        return self.is_assigned and (self.is_member or not self.is_hidden)

    def lies_in_another_storage(self) -> bool:
        if self.is_assigned or self.before.storage is None:
            return False
        return torch_compat.storage_id(self.argument) != self.before.storage

    def lies_beyond_its_storage(self) -> bool:
        if self.is_assigned or self.before.storage is None:
            return False
        return not statically_fits(self.argument, self.before.storage_bytes)

    def has_another_requires_grad(self) -> bool:
        """Whether `requires_grad` changed, and the input changed as well or shares memory."""
        changed = self.version_bumps > 0 or self.mutation is not MutationType.NONE
        if self.index in self.capture.ended:
            return changed
        if self.argument.grad_fn is not None or self.argument.requires_grad == self.spec.requires_grad:
            return False
        return self.index not in self.capture.new_leaves or changed

    def has_gained_a_gradient(self) -> bool:
        primal = None if self.is_member else self.capture.primals[self.index]
        return primal is not None and primal.is_leaf and primal.grad is not None

    def is_of_a_view_of_a_leaf(self) -> bool:
        return not self.is_hidden and isinstance(self.spec, TensorInput) and self.spec.is_view_of_leaf

    def is_of_a_forbidden_view(self) -> bool:
        return not self.is_hidden and isinstance(self.spec, TensorInput) and self.spec.is_forbidden_after_a_write

    def reshapes_partly_hidden(self) -> bool:
        """Whether autograd saw some, but not all, of several changes of the size; its gradient undoes only those."""
        if self.mutation.data or self.argument._base is not None:
            return False
        node, end, seen = self.argument.grad_fn, self.before.grad_fn, 0
        while node is not None and node is not end and node.next_functions:
            node, seen = node.next_functions[0][0], seen + 1
        return node is end and 0 < seen < self.version_bumps

    def reshapes_the_owner_of_shared_memory(self) -> bool:
        """Whether the gradient of the input is that of the shared memory, whose size does not change."""
        spec = self.spec
        if not self.mutation.metadata or not isinstance(spec, MemberInput) or not spec.attached or not spec.requires_grad:
            return False
        base = self.capture.inputs[spec.base]
        assert isinstance(base, SyntheticBase)
        return not base.through_base and self.capture.inputs[base.member] is spec

    def shows_other_elements(self) -> bool:
        """Whether the input was written and then shows other elements of its memory, so the written ones are lost."""
        if self.mutation is not MutationType.DATA_AND_METADATA:
            return False
        _, steps = chain_from(self.capture.trace.node_of(self.argument))
        restrided = any(step.op is AS_STRIDED for step in steps[self.capture.views_made_for(self.index) :])
        return restrided or not torch_compat.known_equal([self.argument.numel()], [math.prod(self.before.geometry.size)])

    def writes_and_reshapes_hidden(self) -> bool:
        """Whether eager would give its gradient the new size, or recreate the history of a view from its new geometry."""
        both = self.mutation is MutationType.DATA_AND_METADATA and self.argument.requires_grad
        return both and (self.is_hidden or self.index in self.capture.hidden_reshapes)

    def writes_and_reshapes_a_converted_view(self) -> bool:
        """Whether a write, which reaches the base through the original view, and a change of the geometry both happened."""
        is_converted = isinstance(self.spec, TensorInput) and self.spec.is_converted_view
        return is_converted and self.mutation is MutationType.DATA_AND_METADATA

    def writes_where_elements_may_overlap(self) -> bool:
        """Whether overlapping elements were written, which a graph computes separately. Members of groups are exempt."""
        written = self.mutation.data or (self.version_bumps and not self.mutation.metadata)
        if not written or self.is_member or self.spec.fake.layout is not torch.strided:
            return False
        return may_overlap_itself(self.spec.fake.size(), self.spec.fake.stride())

    def makes_a_history_anew(self) -> bool:
        """Whether the change was hidden, so that eager recreates the history of a view. In the trace, it is no view."""
        return self.capture.grad_mode_before and self.version_bumps > 0 and self.is_hidden

    def makes_a_forbidden_view_stale(self) -> bool:
        return isinstance(self.spec, TensorInput) and self.spec.is_forbidden_after_a_write and self.makes_a_history_anew()

    def reshapes_a_view_hidden(self) -> bool:
        is_view = isinstance(self.spec, TensorInput) and self.spec.is_view
        return is_view and self.mutation.metadata and self.makes_a_history_anew()


def history_of(argument: torch.Tensor) -> Any:
    """The `grad_fn` of an argument, or of the tensor that it is a view of."""
    return argument.grad_fn if argument._base is None else argument._base.grad_fn


def sizes_in_group(member: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Size and stride of an argument that shares memory; they are static even if others are symbolic."""
    return tuple(map(int, member.size())), tuple(map(int, member.stride()))


def statically_fits(tensor: torch.Tensor, storage_bytes: Any) -> bool:
    """Whether the last element of a tensor lies within `storage_bytes`. Symbolic sizes cannot have been resized."""
    if torch_compat.has_symbolic_shape(tensor) or tensor.numel() == 0:
        return True
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    return (last + 1) * tensor.element_size() <= storage_bytes
