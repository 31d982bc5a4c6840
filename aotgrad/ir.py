"""The types that pass from stage to stage. All are frozen; a later stage returns a new type.

    Capture -> ViewAndMutationMeta -> JointGraph -> Partition -> Compiled -> Executable (pipeline.py)

`verify/` checks each of them, `printing/` prints each of them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, Union

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_graph
from aotgrad.graph.ends import outputs_of
from aotgrad.graph.geometry import Geometry
from aotgrad.graph.kept_calls import KeptCall
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.guards.data_dependent import ValueGuard
from aotgrad.slots import (
    ForwardResult,
    Gradient,
    IntermediateBase,
    Memory,
    Primal,
    Saved,
    SavedSymInt,
    SegmentBoundary,
    SlotSignature,
    Tangent,
    UpdatedInput,
    UserOutput,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from aotgrad.subclasses.forms import TensorForm
    from aotgrad.subclasses.passages import Passage

# --- Capture ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputHint:
    """What the caller knows about an argument.

    Attributes:
        static: it is a parameter or buffer.
        dynamic_dims: which of its sizes are symbolic.
        fake: its fake, if there is one already.
        part: which part of which argument it is, if the argument is a wrapper subclass: `"argument 0.a"`.
        path: its name in a module, `"layers.0.weight"`.
    """

    static: bool = False
    dynamic_dims: frozenset[int] = frozenset()
    fake: torch.Tensor | None = None
    part: str = ""
    path: str | None = None


@dataclass(frozen=True)
class TensorInput:
    """A tensor placeholder, with what the trace assumed about it.

    Attributes:
        is_static: it is a parameter or buffer; its memory outlives the call at one address.
        is_view: it requires grad and is a view.
        is_view_of_leaf: it is a view of a leaf that requires grad; eager refuses to change it in place.
        is_converted_view: it is a view with another dtype, or a conjugated one.
        is_forbidden_after_a_write: it is a view that autograd refuses to use after a write to its base.
        part, path: see `InputHint`.
    """

    name: str
    fake: torch.Tensor
    requires_grad: bool
    is_leaf: bool
    is_static: bool
    is_view: bool = field(default=False, kw_only=True)
    is_view_of_leaf: bool = field(default=False, kw_only=True)
    is_converted_view: bool = field(default=False, kw_only=True)
    is_forbidden_after_a_write: bool = field(default=False, kw_only=True)
    part: str = field(default="", kw_only=True)
    path: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class SymInput:
    """A placeholder that is a Python number at run time and symbolic in the graph."""

    name: str
    value: torch.SymInt | torch.SymFloat | torch.SymBool


@dataclass(frozen=True)
class SyntheticBase(TensorInput):
    """The memory that overlapping arguments share, as one flat tensor: a placeholder that is not an argument.

    It starts `start_bytes` after the first byte of input `member`. If it requires grad, its gradient is the gradient of the
    member, or (`through_base`) of the tensor that the member is a view of.
    """

    member: int
    start_bytes: int
    through_base: bool


@dataclass(frozen=True)
class MemberInput:
    """An argument that overlaps others. It has no placeholder: the graph computes it by `views` of `inputs[base]`.

    Members of one `family` are views of one tensor in eager too: they share gradient history and version.
    `attached`: its gradient flows to the synthetic base.
    """

    name: str
    fake: torch.Tensor
    requires_grad: bool
    base: int
    family: int
    attached: bool
    views: tuple[ViewStep, ...]


InputSpec = Union[TensorInput, SymInput, MemberInput]


@dataclass(frozen=True)
class CallingConvention:
    """The inputs of the graph, and how they form the arguments of the function.

    `inputs`: those with a placeholder, then the members of synthetic bases. Argument k of the function is
    `inputs[order[k]]`. `shared_versions`: groups of inputs that share one version counter which a write raises.
    """

    inputs: tuple[InputSpec, ...]
    order: tuple[int, ...]
    shared_versions: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def plain(cls, inputs: Sequence[InputSpec]) -> CallingConvention:
        """Every argument is an input of the graph."""
        return cls(tuple(inputs), tuple(range(len(inputs))))

    @functools.cached_property
    def placeholder_count(self) -> int:
        return len(self.primals)

    @functools.cached_property
    def primals(self) -> tuple[Primal, ...]:
        """The slots of the inputs that have a placeholder."""
        specs = (spec for spec in self.inputs if not isinstance(spec, MemberInput))
        return tuple(Primal(k, spec.part if isinstance(spec, TensorInput) else "") for k, spec in enumerate(specs))

    def argument_of(self, index: int) -> int:
        """The position of input `index` among the arguments of the function."""
        return self.order.index(index)


@dataclass(frozen=True)
class InputState:
    """One functional input before the function ran, to compare with afterwards.

    For a view, `grad_fn` is the one of its base. Its own one, `history`, changes with every write to the base. `views` is
    the number of views that functionalization has recorded: a view as another dtype is two.
    """

    version: int
    grad_fn: Any
    geometry: Geometry
    storage: int | None
    storage_bytes: Any
    history: Any = None
    views: int = 0


@dataclass(frozen=True)
class InputHook:
    """A hook that the function put on input `index`: `input.method(*arguments)`."""

    index: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class OutputHook:
    """A hook that the function put on output `index`, a view: `output.method(*arguments)`."""

    index: int
    method: str
    arguments: tuple[Any, ...]


class WriteTime(Enum):
    """When an input is written: before the last tensor that autograd saves, after it, or both."""

    BEFORE = "before"
    AFTER = "after"
    BOTH = "both"

    @classmethod
    def of(cls, is_before: Collection[bool]) -> WriteTime:
        return cls.BOTH if len(is_before) == 2 else cls.BEFORE if True in is_before else cls.AFTER


@dataclass(frozen=True)
class Capture:
    """A function that ran once on functional fake tensors, with the trace still open.

    Attributes:
        primals: the live values of the placeholders; gradients are taken with respect to them.
        arguments: what the function was called with, one per input: the primals, but a non-leaf where the input is one.
        outputs: results of the function (the first `returned`), and views of them that later stages need.
        hooks: those that the function registered on arguments; each call registers them on the caller's tensors.
        joins: tensors whose gradients are those of an input; see `capture/gradient_aliases.py`.
        output_hooks: those that it registered on returned views.
        older_views: outputs that are views made before a write to their memory; see `capture/views_before_mutation.py`.
        hooked_nodes: the autograd nodes that hooks of other tensors belong to.
        nodes_with_hooks: the autograd nodes with hooks of their own.
        hidden_reshapes: inputs whose size or stride was changed in place under `no_grad`.
        values: what the function and the backward asked about values; see `capture/values.py`.
        new_leaves: inputs that the function made require grad.
        assigned: inputs that got other memory (`x.data = y`), with the output that holds it.
        ended: inputs that no longer require grad, or that were detached.
        written: when inputs are written; one that is written and is not here is written by an op that does not show it.
    """

    trace: OpenTrace
    convention: CallingConvention
    primals: tuple[Any, ...]
    arguments: tuple[Any, ...]
    before: tuple[InputState | None, ...]
    outputs: tuple[Any, ...]
    returned: int
    grad_mode_before: bool
    grad_mode_after: bool
    hooks: tuple[InputHook, ...]
    joins: tuple[tuple[int, torch.Tensor], ...]
    output_hooks: tuple[OutputHook, ...] = ()
    older_views: frozenset[int] = frozenset()
    hooked_nodes: frozenset[Any] = frozenset()
    nodes_with_hooks: frozenset[Any] = frozenset()
    hidden_reshapes: frozenset[int] = frozenset()
    values: AskedValues | None = None
    new_leaves: frozenset[int] = frozenset()
    assigned: Mapping[int, int] = field(default_factory=dict)
    ended: frozenset[int] = frozenset()
    written: Mapping[int, WriteTime] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        return self.convention.inputs

    @functools.cached_property
    def placeholders(self) -> tuple[fx.Node, ...]:
        """The placeholder nodes of the inputs that have one."""
        nodes = (node for node in self.trace.graph.nodes if node.op == "placeholder")
        return tuple(itertools.islice(nodes, self.convention.placeholder_count))

    @property
    def asked_inputs(self) -> tuple[int, ...]:
        """The inputs whose values the function has read."""
        guard = None if self.values is None else self.values.guard()
        return () if guard is None else tuple(self.convention.order[k] for k in guard.inputs)

    def fake(self, index: int) -> torch.Tensor:
        """The fake of an input that is a tensor."""
        spec = self.inputs[index]
        assert not isinstance(spec, SymInput), f"input {index} is a number"
        return spec.fake

    def views_made_for(self, index: int) -> int:
        """How many views lead from a placeholder to an argument before the function runs."""
        spec = self.inputs[index]
        return len(spec.views) if isinstance(spec, MemberInput) else 0

    def sharing(self, index: int) -> tuple[int, ...]:
        """The inputs that are views of the same memory as input `index`, including it."""
        spec = self.inputs[index]
        if not isinstance(spec, MemberInput):
            return (index,)
        others = enumerate(self.inputs)
        return tuple(k for k, other in others if isinstance(other, MemberInput) and other.base == spec.base)

    def placeholder_of(self, index: int) -> fx.Node:
        """The placeholder of input `index`, or the one it is a view of."""
        spec = self.inputs[index]
        return self.placeholders[spec.base if isinstance(spec, MemberInput) else index]


class AskedValues(Protocol):
    """The values that a function read while it was traced."""

    def guard(self) -> ValueGuard | None:
        """What later calls must have in common; `None` if no value was read."""
        ...


class Region(Protocol):
    """A checkpointed region that a function has run. `keeps_state`: a recomputation draws the same random numbers."""

    keeps_state: bool

    def holds(self, node: Any) -> bool:
        """Whether it created an autograd node."""
        ...

    def is_within(self, other: Any) -> bool:
        """Whether `other` has run it."""
        ...


OnRegion = Callable[[Region, Sequence[Any]], AbstractContextManager[None]]


class OpenTrace(Protocol):
    """The trace as later stages use it: its graph, the node of a live tensor, and a way to continue it.

    `on_hook` is called with an autograd node and the objects that a hook of it holds, before the hook runs. `on_region`
    returns the context in which a checkpointed region is recomputed. `changing` are the regions with side effects.
    `kept_calls` are the calls that a backend keeps whole.
    """

    on_hook: Callable[[Any, Sequence[Any]], None] | None
    on_region: OnRegion | None
    changing: set[Any]
    kept_calls: list[KeptCall]

    @property
    def graph(self) -> fx.Graph: ...

    @property
    def asks_for_offsets(self) -> bool: ...

    def node_of(self, value: Any) -> fx.Node: ...

    def active(self) -> AbstractContextManager: ...

    def watched_draws_of_backward(self) -> AbstractContextManager[None]: ...

    def within_contexts(self) -> AbstractContextManager[None]: ...

    def noting_gradients(self, roots: Iterable[torch.Tensor]) -> AbstractContextManager[None]: ...

    def add_placeholder(self, name: str, like: torch.Tensor) -> torch.Tensor: ...

    def add_memory(self, name: str, like: torch.Tensor) -> torch.Tensor: ...

    def replay_views(self, value: torch.Tensor, root: fx.Node) -> fx.Node: ...

    def origin_of(self, sequence_nr: int) -> dict[str, Any]: ...

    def attribute_to(self, origin: dict[str, Any] | None) -> None: ...

    def constants(self) -> list[torch.Tensor]: ...

    def module(self) -> fx.GraphModule: ...


# --- ViewAndMutationMeta ---------------------------------------------------------------------------------------------


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
class ViewStep:
    """One view op of a chain: `op(base, *args, **kwargs)`, and `[item]` where the op returns a list."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    item: int | None


@dataclass(frozen=True)
class ViewReplay:
    """How to replay a view from its base at run time.

    `steps` are the recorded view ops; their sizes are ints or symbolic ints. `grad_mode` is the mode that the chain
    must run in, or `None` for the caller's. `reason` tells why this chain was chosen.
    """

    steps: tuple[ViewStep, ...]
    grad_mode: bool | None
    reason: str


@dataclass(frozen=True)
class InputAliasInfo:
    """What happened to one tensor input during the call.

    Attributes:
        hidden_from_autograd: the data was changed under `no_grad` or through `detach()`, so its gradient history stays.
        version_bumps: by how much eager raises its version counter.
        geometry: size, stride and storage offset after a metadata mutation.
        changed_later: a backward changes its data.
    """

    mutation: MutationType
    hidden_from_autograd: bool
    version_bumps: int
    requires_grad_after: bool
    geometry: Geometry | None
    changed_later: bool = False

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


# --- JointGraph and Partition ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SavingNodes:
    """Nodes of eager's autograd graph that save values and run in the same backwards.

    Attributes:
        tangent_mask: the tangents of the segment that lead to them.
        gradient_mask: the gradients that they lead to.
        memory: inputs and results that own the memory of saved values and may change without the version counters of these
            values: a backward changes them in place, or an input got their memory. It must be unchanged when they run.
        error: what a backward through them raises where the function itself overwrote the saved values.
    """

    tangent_mask: int
    gradient_mask: int
    memory: frozenset[Primal | ForwardResult] = frozenset()
    error: str | None = None


@dataclass(frozen=True)
class ChangedMemory:
    """Memory that a segment changes in place, and by how much its version counter rises.

    `tangent`: the tangent that it is, if any. `for_saved`: it changes when a checkpointed region recomputes a saved value.
    """

    memory: Memory
    version_bumps: int
    tangent: Tangent | None = None
    for_saved: bool = False


@dataclass(frozen=True)
class BackwardSegment:
    """The tangents and gradients of one autograd node of the compiled function.

    Every tangent of the joint graph belongs to one segment. A gradient of a result or a boundary is added to the tangent of
    a later segment; the gradient of a returned view passes through the view, outside of all graphs.

    Attributes:
        gradients: in the order of the node's inputs. With this order, the engine runs the hooks of leaves as in eager.
        materialize: an undefined tangent beside a defined one is zeros, as for a custom function.
        saving: eager's nodes in it that save a value.
        changes: what its one node changes in place.
    """

    tangents: tuple[Tangent, ...]
    gradients: tuple[Gradient, ...]
    materialize: bool = False
    saving: tuple[SavingNodes, ...] = ()
    changes: tuple[ChangedMemory, ...] = ()

    @property
    def has_sentinel(self) -> bool:
        return needs_sentinel(len(self.gradients))


SENTINEL_INPUTS = 32
"""At this many inputs, one sentinel costs as much as asking the engine about each."""


def needs_sentinel(inputs: int) -> bool:
    """Whether an autograd node with so many inputs has a sentinel before them: a leaf that no caller knows.

    The engine runs the sentinel's node in a plain `.backward()`, but not where only some gradients are wanted. So one
    question to the engine replaces one per parameter. Without inputs, the sentinel is what makes torch create a node.
    """
    return inputs == 0 or inputs >= SENTINEL_INPUTS


@dataclass(frozen=True)
class SlotGraph:
    """A graph, and the meaning of each placeholder and output."""

    module: fx.GraphModule
    signature: SlotSignature

    @property
    def placeholders(self) -> dict[Any, fx.Node]:
        """The placeholders by slot."""
        return dict(zip(self.signature.inputs, self.module.graph.find_nodes(op="placeholder"), strict=True))

    @property
    def results(self) -> dict[Any, Any]:
        """What the graph returns, by slot: nodes, numbers, or `None`."""
        return dict(zip(self.signature.outputs, outputs_of(self.module.graph), strict=True))

    def copy(self) -> Self:
        """The same with a copy of the graph."""
        return replace(self, module=LazyGraphModule(self.module, copy_graph(self.module.graph)))


@dataclass(frozen=True)
class JointGraph(SlotGraph):
    """One functional FX graph of forward and backward. Without tangents it is an inference graph.

    Attributes:
        static_inputs: primals whose memory outlives the call at one address (parameters, buffers).
        mutated_inputs: primals that are overwritten after the forward; the backward must not read them.
        writable_inputs: mutated primals that the forward graph may write itself.
        segments: the parts of the backward, in the order in which they run.
        private_inputs: primals that the caller does not hold, so that nothing else writes to them.
        held_inputs: other primals that are alive anyway, so that saving them takes no memory.
        memory: the inputs, results and tangents that a backward changes in place.
        effects: groups of autograd nodes that change memory, one segment each; a node is given by its age in the function.
        saved_in_eager: the inputs and results that own the memory of a value that eager saves.
        eager_bytes: what eager saves outside of their memory, in bytes; `None` if unknown.
        passages: how gradients pass through the wrapper subclasses among the results; each stands for all its parts.
        cut_forms: the forms of wrapper subclasses that pass between two segments.
    """

    static_inputs: frozenset[int]
    mutated_inputs: frozenset[int]
    writable_inputs: frozenset[int] = frozenset()
    segments: tuple[BackwardSegment, ...] = ()
    private_inputs: frozenset[int] = frozenset()
    held_inputs: frozenset[int] = frozenset()
    memory: tuple[Primal | ForwardResult | Tangent, ...] = ()
    effects: tuple[frozenset[int], ...] = ()
    saved_in_eager: frozenset[Primal | ForwardResult] = frozenset()
    eager_bytes: int | None = None
    passages: Mapping[Gradient, Passage] = field(default_factory=dict)
    cut_forms: Mapping[SegmentBoundary, TensorForm] = field(default_factory=dict)

    @property
    def differentiable(self) -> bool:
        return bool(self.signature.tangents)


@dataclass(frozen=True)
class SavedValue:
    """One value that the forward saves for the backward, and why it is not recomputed.

    `saved_bytes` are on the device, `host_bytes` in the memory of the host if the value is offloaded.
    """

    slot: Saved | SavedSymInt
    saved_bytes: int
    reason: str
    source: str | None
    host_bytes: int = 0


@dataclass(frozen=True)
class RecomputedValue:
    """One op of the forward that the backward recomputes, and why its result is not saved.

    `traffic_bytes`: what it reads and writes if it is not fused, 0 for a view. `flops`: floating point operations of a
    product, a convolution or an attention, 0 for other ops.
    """

    name: str
    reason: str
    source: str | None
    traffic_bytes: int
    flops: int


@dataclass(frozen=True)
class GraphHalf(SlotGraph):
    """A graph that a backend compiles.

    `overwritable`: the inputs whose memory the compiled graph may write over.
    `is_checked`: what the compiled graph returns is compared with the trace in each call.
    """

    overwritable: frozenset[Saved] = frozenset()
    is_checked: bool = False

    def for_backend(self, overwritable: frozenset[Saved]) -> GraphHalf:
        """A copy for a backend, which may change the graph that it compiles."""
        return replace(self.copy(), overwritable=overwritable)

    def guard_count(self) -> int:
        """How many symbolic guards the graph's trace has; 0 for a graph without symbolic sizes."""
        values = (node.meta.get("val") for node in self.module.graph.find_nodes(op="placeholder"))
        return max((torch_compat.guard_count(value) for value in values if isinstance(value, torch.Tensor)), default=0)

    def attributes(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The tensors that the graph refers to by these names."""
        return {name: functools.reduce(getattr, name.split("."), self.module) for name in names}

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the placeholders."""
        return tuple(node.name for node in self.module.graph.find_nodes(op="placeholder"))

    def calls_any(self, names: Collection[str]) -> bool:
        """Whether the graph may call one of some ops, such as `"aten.mm"`."""
        return any(op_table.op_name(node.target) in names for node in self.module.graph.nodes)

    def communicates(self) -> bool:
        """Whether processes may communicate in the graph."""
        return any(op_table.communicates(node.target) for node in self.module.graph.nodes)


@dataclass(frozen=True)
class Partition:
    """The two halves of a joint graph; `backward` is `None` for an inference graph."""

    forward: GraphHalf
    backward: GraphHalf | None
    saved: tuple[SavedValue, ...]
    recomputed: tuple[RecomputedValue, ...] = ()

    @property
    def saved_bytes(self) -> int:
        return sum(value.saved_bytes for value in self.saved)

    @property
    def host_bytes(self) -> int:
        return sum(value.host_bytes for value in self.saved)


# --- Compiled --------------------------------------------------------------------------------------------------------

BoxedCallable = Callable[[list], Sequence[Any]]
CompileBackward = Callable[[GraphHalf], BoxedCallable]


@dataclass(frozen=True)
class Compiled:
    """The compiled halves of a partition: callables that take a list, which they may clear, and return a list or tuple.

    Backward graphs are compiled on first use, one variant at a time, from the backward half or a specialized copy of it.

    `reuses_memory`: a call may write its results over those of earlier calls, unless a backward of these is still to come.
    `writes_over`: a backward graph can write over the inputs that are `overwritable`.
    """

    backend: str
    forward: BoxedCallable
    compile_backward: CompileBackward | None
    reuses_memory: bool = False
    writes_over: bool = False

    def with_backward(self, wrap: Callable[[CompileBackward], CompileBackward]) -> Compiled:
        """The same with `wrap(compile_backward)` in its place, if there is a backward."""
        return self if self.compile_backward is None else replace(self, compile_backward=wrap(self.compile_backward))
