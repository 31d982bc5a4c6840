"""The results of the earlier stages, with the questions that all steps of a schedule ask of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.ir import (
    BackwardSegment,
    Capture,
    GraphHalf,
    InputAliasInfo,
    JointGraph,
    Partition,
    SymInput,
    TensorInput,
    ViewAndMutationMeta,
)
from aotgrad.runtime.segments import segment_halves
from aotgrad.slots import (
    IntermediateBase,
    NextOffset,
    ReturnedWrapper,
    Saved,
    SavedSymInt,
    SegmentBoundary,
    UpdatedInput,
    UserOutput,
    of_kind,
)

if TYPE_CHECKING:
    from aotgrad.subclasses.bridge import End
    from aotgrad.subclasses.passages import Passage, TracedView


class StageResults:
    """The results of the stages before the runtime.

    Attributes:
        inputs: the names of the inputs.
        segments, halves: the segments of the backward, and the graph of each.
    """

    def __init__(self, capture: Capture, meta: ViewAndMutationMeta, partition: Partition, joint: JointGraph) -> None:
        self.capture, self.meta, self.partition, self.joint = capture, meta, partition, joint
        self.signature = partition.forward.signature
        self.inputs = tuple(spec.name for spec in capture.inputs)
        self.segments: Sequence[BackwardSegment] = joint.segments
        self.halves: Sequence[GraphHalf] = ()
        if partition.backward is not None:
            self.halves = segment_halves(partition.backward, joint.segments)

    @property
    def primals(self) -> tuple[str, ...]:
        """The names of the graph's primals."""
        return self.inputs[: self.capture.convention.placeholder_count]

    @property
    def guarded(self) -> tuple[str, ...]:
        """The names of the values that the guard has computed."""
        return tuple(f"guarded_{slot.index + 1}" for slot in self.signature.guarded)

    @functools.cached_property
    def primal_names(self) -> dict[Any, str]:
        """The names of the graph's primals, by placeholder."""
        return dict(zip(self.partition.forward.module.graph.find_nodes(op="placeholder"), self.primals, strict=False))

    @property
    def has_backward(self) -> bool:
        return self.partition.backward is not None

    @functools.cached_property
    def wrappers(self) -> dict[ReturnedWrapper, End]:
        """The results through which gradients of other results pass; of views their bases."""
        bases = [view.base for view in self.wrapper_views.values()]
        results = {slot: passage.result for slot, passage in self.passages if passage.view is None}
        return {**results, **dict(base for base in bases if base is not None)}

    @functools.cached_property
    def wrapper_views(self) -> dict[ReturnedWrapper, TracedView]:
        """The views among the results through which gradients of other results pass, in the order of eager."""
        found = {slot: passage.view for slot, passage in self.passages if passage.view is not None}
        return dict(sorted(found.items(), key=lambda pair: torch_compat.node_sequence_nr(pair[1].edge[0])))

    @property
    def passages(self) -> Iterator[tuple[ReturnedWrapper, Passage]]:
        """How gradients pass through results."""
        slots = ((gradient.of, passage) for gradient, passage in self.joint.passages.items())
        return ((slot, passage) for slot, passage in slots if isinstance(slot, ReturnedWrapper))

    @functools.cached_property
    def saved(self) -> tuple[Saved, ...]:
        """The tensors that the forward saves."""
        return of_kind(self.signature.outputs, Saved)

    @functools.cached_property
    def result_nodes(self) -> dict[Any, Any]:
        """The node behind each output slot of the forward graph."""
        return self.partition.forward.results

    @functools.cached_property
    def fakes(self) -> tuple[tuple[str, Any], ...]:
        """Traced values by name: the inputs, then the forward's results."""
        inputs = [(spec.name, spec.value if isinstance(spec, SymInput) else spec.fake) for spec in self.capture.inputs]
        results = self.result_nodes.items()
        return (*inputs, *((result_name(slot), node.meta["val"]) for slot, node in results if isinstance(node, fx.Node)))

    @property
    def node_grad_mode(self) -> bool | None:
        """The mode to make autograd nodes in: under `no_grad`, only what the function made under `enable_grad` has one."""
        return None if self.capture.grad_mode_before else True

    def is_leaf(self, index: int) -> bool:
        spec = self.capture.inputs[index]
        return isinstance(spec, TensorInput) and spec.is_leaf


def result_name(slot: Any) -> str:
    """The variable that holds a forward result."""
    match slot:
        case UpdatedInput(index):
            return f"updated_{index + 1}"
        case UserOutput(index):
            return f"output_{index}"
        case IntermediateBase(index):
            return f"base_{index}"
        case SegmentBoundary(index, segment, term, part):
            return f"cut_{index}_{segment}_{term}_{part}" if slot.is_part else f"cut_{index}"
        case ReturnedWrapper(index):
            return f"wrapper_{index}"
        case Saved(name) | SavedSymInt(name):
            return f"saved_{name}"
        case NextOffset(device):
            return f"offset_{device.replace(':', '_')}"
    raise AssertionError(slot)


def has_strides_of(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two traced tensors of one size have the same strides; adds no guard."""
    return torch_compat.hints(torch_compat.strides(value)) == torch_compat.hints(torch_compat.strides(other))


def is_changed(info: InputAliasInfo | None) -> bool:
    return info is not None and info.version_bumps + info.mutation.data + info.mutation.metadata > 0
