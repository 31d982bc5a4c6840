"""`ViewAndMutationMeta`: how the inputs of a function are mutated, and what its outputs alias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Union

import torch
import torch.fx as fx

from aotgrad.graph.geometry import Geometry
from aotgrad.ir.captures import ViewReplay
from aotgrad.slots import ForwardResult, IntermediateBase, UpdatedInput, UserOutput


class MutationType(Enum):
    """How a function changed one input."""

    NONE = "none"
    METADATA_ONLY = "metadata_only"
    DATA = "data"
    DATA_AND_METADATA = "data_and_metadata"

    @property
    def data(self) -> bool:
        return self in (MutationType.DATA, MutationType.DATA_AND_METADATA)

    @property
    def metadata(self) -> bool:
        return self in (MutationType.METADATA_ONLY, MutationType.DATA_AND_METADATA)


@dataclass(frozen=True)
class InputAliasInfo:
    """What happened to one tensor input during the call.

    Attributes:
        hidden_from_autograd: the data was changed under `no_grad` or through `detach()`, so its gradient history stays.
        version_bumps: by how much eager raises its version counter.
        geometry: size, stride and storage offset after a metadata mutation.
        changed_later: a backward changes its data.
        is_used: see `InputHint`.
    """

    mutation: MutationType
    hidden_from_autograd: bool
    version_bumps: int
    requires_grad_after: bool
    geometry: Geometry | None
    changed_later: bool = False
    is_used: bool = True

    @property
    def geometry_after(self) -> Geometry:
        """`geometry` of an input whose metadata was mutated."""
        assert self.geometry is not None, "its size and stride are what they were"
        return self.geometry

    @property
    def carries_gradient(self) -> bool:
        """Whether the updated value is a forward result with a tangent in the backward."""
        return self.mutation.data and not self.hidden_from_autograd and self.requires_grad_after

    @property
    def is_written(self) -> bool:
        """Whether autograd takes it as written: its data changes, or its version rises where autograd does not see it.

        The second case occurs if the size of a view of it is changed in place under `no_grad`. If the input is itself a view
        that requires grad, eager recreates its history.
        """
        only_version = self.version_bumps > 0 and self.mutation is MutationType.NONE
        return self.mutation.data or (only_version and self.hidden_from_autograd and self.requires_grad_after)


@dataclass(frozen=True)
class NonAlias:
    """A new tensor that the graph computes."""

    requires_grad: bool


@dataclass(frozen=True)
class IsInput:
    """The input object itself."""

    index: int


@dataclass(frozen=True)
class IsOutput:
    """The same object as an earlier output."""

    index: int


class Made(Enum):
    """When a view of an input is replayed, relative to the mutations of the input."""

    AFTER_CHANGES = ""
    BEFORE_METADATA = " before its metadata is mutated"
    BEFORE_WRITES = " before it is written"


@dataclass(frozen=True)
class AliasOfInput:
    """A view of an input, replayed from the real input. Its place in memory and its history depend on when: `made`."""

    index: int
    replay: ViewReplay
    made: Made = Made.AFTER_CHANGES


@dataclass(frozen=True)
class AliasOfOutput:
    """A view of output `output`, which is an alias itself: its gradient passes through that output and its hooks."""

    output: int
    replay: ViewReplay


@dataclass(frozen=True)
class AliasOfIntermediate:
    """One of several views of an intermediate base, a tensor that the graph returns as an extra output."""

    base: int
    replay: ViewReplay


@dataclass(frozen=True)
class AliasOfIntermediateBaseIsUserOutput:
    """A view of a tensor that is itself output `output`."""

    output: int
    replay: ViewReplay


@dataclass(frozen=True)
class UnsafeViewAlias:
    """An alias of an intermediate that autograd does not track as a view. Its base is not visible: the graph returns it."""

    requires_grad: bool


@dataclass(frozen=True)
class CustomFunctionView:
    """A view that a user's `autograd.Function` returns: the graph computes it, because a replay would lose its backward.

    Where it is a view of input `index`, `remake` replays it outside of the graph, so that it aliases the input.
    """

    requires_grad: bool
    index: int | None
    remake: ViewReplay | None


@dataclass(frozen=True)
class SymOutput:
    """A symbolic int, float or bool that the graph computes."""


@dataclass(frozen=True)
class ConstantOutput:
    """`None`, a number, a string, or a tensor that the function closed over: the same object in every call."""

    value: Any


OutputAliasInfo = Union[
    NonAlias,
    IsInput,
    IsOutput,
    AliasOfInput,
    AliasOfOutput,
    AliasOfIntermediate,
    AliasOfIntermediateBaseIsUserOutput,
    UnsafeViewAlias,
    CustomFunctionView,
    SymOutput,
    ConstantOutput,
]
GRAPH_OUTPUTS = (NonAlias, UnsafeViewAlias, CustomFunctionView, SymOutput)
REPLAYED_VIEWS = (AliasOfInput, AliasOfOutput, AliasOfIntermediate, AliasOfIntermediateBaseIsUserOutput)


@dataclass(frozen=True)
class BaseInfo:
    """An intermediate base: a tensor that is not a user output, but that several user outputs are views of.

    `live` is its functional tensor, or `None` if autograd does not know it; `node` computes it.
    """

    requires_grad: bool
    node: fx.Node
    live: torch.Tensor | None


@dataclass(frozen=True)
class ViewAndMutationMeta:
    """How the function changes its inputs, and what each of its outputs aliases.

    Attributes:
        inputs: `None` for inputs that are not tensors, and for synthetic bases, whose members have the information.
        outputs: one per user output.
        bases: the intermediate bases.
        grad_mode_after: the grad mode that the function left behind; `None` if it did not change it.
        versions: the version counters of results that the function changed in place; those of the others are 0.
        new_leaves: outputs that the function created or detached, and then made require grad.
    """

    inputs: tuple[InputAliasInfo | None, ...]
    outputs: tuple[OutputAliasInfo, ...]
    bases: tuple[BaseInfo, ...]
    grad_mode_after: bool | None
    versions: tuple[tuple[ForwardResult, int], ...] = ()
    new_leaves: frozenset[int] = frozenset()

    def forward_results(self) -> tuple[ForwardResult, ...]:
        """The results of the forward graph, in the order that backends rely on."""
        updated = [UpdatedInput(i) for i, info in enumerate(self.inputs) if info is not None and info.mutation.data]
        outputs = [UserOutput(i) for i, info in enumerate(self.outputs) if isinstance(info, GRAPH_OUTPUTS)]
        return (*updated, *outputs, *(IntermediateBase(i) for i in range(len(self.bases))))

    def replayed_views(self) -> Iterator[int]:
        """The outputs that are views replayed outside of the graph."""
        return (k for k, info in enumerate(self.outputs) if isinstance(info, REPLAYED_VIEWS) and info.replay.steps)

    def input_behind(self, index: int) -> int | None:
        """The input that output `index` is a view of, with the data and metadata that the call leaves; else `None`."""
        match self.outputs[index]:
            case AliasOfInput(k) as alias if alias.made is not Made.BEFORE_METADATA:
                return k
            case AliasOfOutput(output):
                return self.input_behind(output)
        return None

    def info(self, index: int) -> InputAliasInfo:
        """What happened to an input that is a tensor."""
        info = self.inputs[index]
        assert info is not None, f"input {index} is a number"
        return info

    def computed_result(self, index: int) -> ForwardResult | None:
        """The graph result that output `index` is, or is a view of; `None` for an argument or a view of one."""
        match self.outputs[index]:
            case NonAlias() | UnsafeViewAlias() | CustomFunctionView():
                return UserOutput(index)
            case AliasOfIntermediate() | AliasOfIntermediateBaseIsUserOutput():
                return self.result_behind(index)
            case IsOutput(other):
                return self.computed_result(other)
        return None

    def result_behind(self, index: int) -> ForwardResult | None:
        """The graph result that output `index` is a view of; `None` for a view of an input that is not mutated."""
        match self.outputs[index]:
            case AliasOfInput():
                k = self.input_behind(index)
                return UpdatedInput(k) if k is not None and self.info(k).mutation.data else None
            case AliasOfIntermediate(base):
                return IntermediateBase(base)
            case AliasOfIntermediateBaseIsUserOutput(output):
                return UserOutput(output)
            case AliasOfOutput(output):
                return self.result_behind(output)
        raise AssertionError(f"output {index} is no view")
