"""The types that pass from stage to stage. All are frozen, and none is filled in later.

    Capture -> ViewAndMutationMeta -> JointGraph -> Partition -> Compiled -> Executable (runtime/plan.py)

What a later stage learns goes into a new type. `verify.py` checks each of them, `printing.py` prints each of them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, Union

import torch
import torch.fx as fx

from aotgrad.guards.data_dependent import ValueGuard
from aotgrad.slots import (
    ForwardResult,
    Gradient,
    GraphSignature,
    IntermediateBase,
    Memory,
    Primal,
    Saved,
    SavedSymInt,
    Tangent,
    UpdatedInput,
    UserOutput,
)

FOLDED = "_folded_"
"""Begins the names of attributes that hold what passes have computed; others may be tensors of the user's."""


@dataclass(frozen=True)
class Geometry:
    """Where a tensor lies in its storage, in elements."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Geometry:
        """The geometry of a tensor; no strides for layouts that have none."""
        if tensor.layout is not torch.strided:
            return cls(tuple(tensor.size()), (), 0)
        return cls(tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset())


# --- Capture ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputHint:
    """What the caller knows of an argument: is it a parameter or buffer, and which of its sizes are symbolic."""

    static: bool = False
    dynamic_dims: frozenset[int] = frozenset()


@dataclass(frozen=True)
class TensorInput:
    """A tensor placeholder: what the trace assumed of it.

    `is_static`: a parameter or buffer, whose memory outlives the call at one address. `is_view`: it requires grad, and is a
    view. `is_forbidden_after_a_write`: a view that autograd lets nobody use then. `is_view_of_leaf`: of a leaf that
    requires grad, so that eager does not let it be changed in place. `is_converted_view`: of another dtype, or conjugated.
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


@dataclass(frozen=True)
class SymInput:
    """A placeholder that is a Python number at run time and symbolic in the graph."""

    name: str
    value: torch.SymInt | torch.SymFloat | torch.SymBool


@dataclass(frozen=True)
class SyntheticBase(TensorInput):
    """The memory that overlapping arguments have in common, as one flat tensor: a placeholder that is no argument.

    It starts `start_bytes` after the first byte of input `member`. If it requires grad, its gradient is that of the
    member, or (`through_base`) of the tensor that the member is a view of.
    """

    member: int
    start_bytes: int
    through_base: bool


@dataclass(frozen=True)
class MemberInput:
    """An argument that overlaps others: it has no placeholder, and is made in the graph by `views` of `inputs[base]`.

    Members of one `family` are views of one tensor in eager too: they share their gradient history and their version.
    `attached`: their gradients flow to the synthetic base.
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
    """What the graph gets, and how that makes the arguments of the function.

    `inputs`: those with a placeholder, then the members of synthetic bases. Argument k of the function is
    `inputs[order[k]]`. `shared_versions`: inputs which have one version counter, if a write to one is to be seen there.
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
        return sum(not isinstance(spec, MemberInput) for spec in self.inputs)

    def argument_of(self, index: int) -> int:
        """Which argument of the function input `index` is."""
        return self.order.index(index)


@dataclass(frozen=True)
class InputState:
    """One functional input as it was before the function ran, to compare with afterwards.

    `grad_fn` is that of the tensor it is a view of, if it is one: its own, `history`, changes with every write to that.
    """

    version: int
    grad_fn: Any
    geometry: Geometry
    storage: int | None
    storage_bytes: Any
    history: Any = None


@dataclass(frozen=True)
class InputHook:
    """What the function told autograd to do with the gradient of input `index`: `input.method(*arguments)`."""

    index: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class OutputHook:
    """What the function told autograd to do with the gradient of output `index`, a view: `output.method(*arguments)`."""

    index: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Capture:
    """A function that ran once on functional fake tensors, with the trace still open.

    `primals` are the placeholders' live values: gradients are taken with respect to them. `arguments` are what the
    function was called with, one an input: the same tensors, except that an input which is not a leaf is a non-leaf here
    too. `hooks` are those that the function registered on arguments, `output_hooks` those on returned views; every call does
    it again, on the caller's tensors.
    Of the `outputs`, the function returned the first `returned`. `older_views` are those that are views and older than a
    write to their memory, as all are that were not returned; see `capture/views_before_mutation.py`.
    `hooked_nodes` are the autograd nodes that hooks of other tensors belong to, and `nodes_with_hooks`: these have hooks of
    their own.
    `hidden_reshapes` are the inputs whose size or stride was changed in place under `no_grad`.
    `joins` are tensors whose gradients are those of an input; see `capture/gradient_aliases.py`.
    `new_leaves` are the inputs that the function has told to require grad, `ended` those that no longer do, or are detached.
    `assigned` are those that it has given other
    memory (`x.data = y`), each with the output that this is.
    `values` are what the function, and the backward, asked about values; see `capture/values.py`.
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
        """The inputs whose values the function has asked for."""
        guard = None if self.values is None else self.values.guard()
        return () if guard is None else tuple(self.convention.order[k] for k in guard.inputs)

    def fake(self, index: int) -> torch.Tensor:
        """The fake of an input that is a tensor."""
        spec = self.inputs[index]
        assert not isinstance(spec, SymInput), f"input {index} is a number"
        return spec.fake

    def views_made_for(self, index: int) -> int:
        """How many views lead from a placeholder to an argument before the function has run."""
        spec = self.inputs[index]
        return len(spec.views) if isinstance(spec, MemberInput) else 0

    def sharing(self, index: int) -> tuple[int, ...]:
        """The inputs that are views of the same memory as input `index`, with it."""
        spec = self.inputs[index]
        if not isinstance(spec, MemberInput):
            return (index,)
        others = enumerate(self.inputs)
        return tuple(k for k, other in others if isinstance(other, MemberInput) and other.base == spec.base)

    def placeholder_of(self, index: int) -> fx.Node:
        """The placeholder that input `index` is, or is a view of."""
        spec = self.inputs[index]
        return self.placeholders[spec.base if isinstance(spec, MemberInput) else index]


class AskedValues(Protocol):
    """What was asked about values while a function was traced."""

    def guard(self) -> ValueGuard | None:
        """What has to be answered in the same way; `None` if nothing was asked."""
        ...


class Region(Protocol):
    """A checkpointed region that a function has run. `keeps_state`: it draws the same random numbers again."""

    keeps_state: bool

    def holds(self, node: Any) -> bool:
        """Whether it has made an autograd node."""
        ...

    def is_within(self, other: Any) -> bool:
        """Whether `other` has run it."""
        ...


OnRegion = Callable[[Region, Sequence[Any]], AbstractContextManager[None]]


class OpenTrace(Protocol):
    """What later stages need of the trace: its graph, the node of a live tensor, and a way back in.

    `on_hook` is called with an autograd node and what a hook of it holds, before that runs. A checkpointed region that runs
    again does so within what `on_region` makes of it and of what it holds. `changing` are those that change something.
    """

    on_hook: Callable[[Any, Sequence[Any]], None] | None
    on_region: OnRegion | None
    changing: set[Any]

    @property
    def graph(self) -> fx.Graph: ...

    @property
    def asks_for_offsets(self) -> bool: ...

    def node_of(self, value: Any) -> fx.Node: ...

    def active(self) -> AbstractContextManager: ...

    def watched_draws_of_backward(self) -> AbstractContextManager[None]: ...

    def add_placeholder(self, name: str, like: torch.Tensor) -> torch.Tensor: ...

    def add_memory(self, name: str, like: torch.Tensor) -> torch.Tensor: ...

    def replayed(self, value: torch.Tensor, root: fx.Node) -> fx.Node: ...

    def origin_of(self, sequence_nr: int) -> dict[str, Any]: ...

    def attribute_to(self, origin: dict[str, Any] | None) -> None: ...

    def constants(self) -> list[torch.Tensor]: ...

    def module(self) -> fx.GraphModule: ...


# --- ViewAndMutationMeta ---------------------------------------------------------------------------------------------


class MutationType(Enum):
    """What a function did to one input."""

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
    """One view op of a chain: `op(base, *args, **kwargs)`, then `[item]` where the op returns a list."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    item: int | None


@dataclass(frozen=True)
class ViewReplay:
    """How to make a view again from its base at run time.

    `steps` are the recorded view ops; sizes in them are ints or symbolic ints. `grad_mode` is the mode that the chain
    must run in, or `None` if the caller's own is right. `reason` says why this way was taken.
    """

    steps: tuple[ViewStep, ...]
    grad_mode: bool | None
    reason: str


@dataclass(frozen=True)
class InputAliasInfo:
    """What happened to one tensor input during the call.

    `hidden_from_autograd`: the data was changed under `no_grad` or through `detach()`, so its gradient history stays.
    `version_bumps`: by how much eager would have raised its version counter.
    `geometry`: size, stride and storage offset after a metadata mutation. `changed_later`: a backward changes its data.
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
        """Whether the updated value is a result of the forward that the backward gets a tangent for."""
        return self.mutation.data and not self.hidden_from_autograd and self.requires_grad_after


@dataclass(frozen=True)
class NonAlias:
    """A fresh tensor made by the graph."""

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
    """When a view of an input is made at run time, as it was in eager."""

    AFTER_CHANGES = ""
    BEFORE_METADATA = " before its metadata is mutated"
    BEFORE_WRITES = " before it is written"


@dataclass(frozen=True)
class AliasOfInput:
    """A view of an input, made again at run time from the real input: where it lies, and its history, depend on when."""

    index: int
    replay: ViewReplay
    made: Made = Made.AFTER_CHANGES


@dataclass(frozen=True)
class AliasOfOutput:
    """A view of output `output`, which is an alias itself: what a hook on that one sees goes through it."""

    output: int
    replay: ViewReplay


@dataclass(frozen=True)
class AliasOfIntermediate:
    """One of several views of a tensor that the graph returns as an extra output, its intermediate base."""

    base: int
    replay: ViewReplay


@dataclass(frozen=True)
class AliasOfIntermediateBaseIsUserOutput:
    """A view of a tensor that is itself output `output`."""

    output: int
    replay: ViewReplay


@dataclass(frozen=True)
class UnsafeViewAlias:
    """An alias of an intermediate that autograd does not track as a view, and whose base nobody sees: returned as it is."""

    requires_grad: bool


@dataclass(frozen=True)
class CustomFunctionView:
    """A view made by a user's `autograd.Function`: the graph computes it, since a replay would lose its backward.

    Where it is a view of input `index`, `remake` makes the same view outside of the graph, so that it is one of the input.
    """

    requires_grad: bool
    index: int | None
    remake: ViewReplay | None


@dataclass(frozen=True)
class SymOutput:
    """A symbolic int, float or bool that the graph computes."""


@dataclass(frozen=True)
class ConstantOutput:
    """`None`, a number, a string, a tensor that the function closed over: the same object on every call of this plan."""

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
    """An intermediate base: a tensor that no user output is, but several are views of.

    `live` is its functional tensor, or `None` if autograd does not know it; `node` computes it.
    """

    requires_grad: bool
    node: fx.Node
    live: torch.Tensor | None


@dataclass(frozen=True)
class ViewAndMutationMeta:
    """What the function does to its inputs and what each of its outputs is.

    `inputs[k]` is `None` for inputs that are not tensors, and for synthetic bases: their members say what happened.
    `grad_mode_after` is the grad mode that the function left behind, or `None` if it did not change it. `versions` are the
    version counters of results that the function changed in place after it had made them; those of the others are 0.
    `new_leaves` are the outputs that the function has made, or detached, and then told to require grad.
    """

    inputs: tuple[InputAliasInfo | None, ...]
    outputs: tuple[OutputAliasInfo, ...]
    bases: tuple[BaseInfo, ...]
    grad_mode_after: bool | None
    versions: tuple[tuple[ForwardResult, int], ...] = ()
    new_leaves: frozenset[int] = frozenset()

    def forward_results(self) -> tuple[ForwardResult, ...]:
        """What the forward graph returns, in the order that backends rely on."""
        updated = [UpdatedInput(i) for i, info in enumerate(self.inputs) if info is not None and info.mutation.data]
        outputs = [UserOutput(i) for i, info in enumerate(self.outputs) if isinstance(info, GRAPH_OUTPUTS)]
        return (*updated, *outputs, *(IntermediateBase(i) for i in range(len(self.bases))))

    def replayed_views(self) -> Iterator[int]:
        """The outputs that are views made outside of the graph."""
        return (k for k, info in enumerate(self.outputs) if isinstance(info, REPLAYED_VIEWS) and info.replay.steps)

    def input_behind(self, index: int) -> int | None:
        """The input that output `index` is a view of, as the call leaves it."""
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

    def result_behind(self, index: int) -> ForwardResult | None:
        """The result of the graph that output `index`, a view, is made of; `None` if it is made of an input as it was."""
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
    """Nodes of eager's autograd graph that save values, and run in the same backwards.

    `reached` are the tangents of a segment that lead to them, `leads` the gradients that they lead to, as bit masks.
    `values` are the inputs and results of the function in whose memory the saved values lie. `error` is what a backward
    through them raises, as eager says it, if the function itself overwrote what they saved.
    """

    tangent_mask: int
    gradient_mask: int
    values: frozenset[Primal | ForwardResult]
    error: str | None = None


@dataclass(frozen=True)
class ChangedMemory:
    """What a segment changes in place, and by how much the version counter rises.

    `tangent`: the one of the segment's that it is, if it is one. `for_saved`: it does so where one of its nodes runs that
    needs a saved value, which a checkpointed region makes again.
    """

    memory: Memory
    version_bumps: int
    tangent: Tangent | None = None
    for_saved: bool = False


@dataclass(frozen=True)
class BackwardSegment:
    """What one autograd node of the compiled function gets and returns.

    Every tangent of the joint graph belongs to one segment. A gradient of a result or a cut is added to the tangent that
    a later segment gets for it; one of a returned view goes through the view, and no graph gets it. Gradients are in the
    order of the node's inputs: one for which the engine runs the hooks of leaves as in eager. `materialize`: an undefined
    tangent beside a defined one is zeros, as for a custom function.
    `saving` are eager's nodes in it that save a value: a second backward through one raises, unless the graph was retained,
    and so does one after the value was changed in place. `changes`: what its one node changes in place.
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
"""To ask the engine about so many inputs takes the time that one input more takes it."""


def needs_sentinel(inputs: int) -> bool:
    """Whether an autograd node with so many inputs has one more before them, the sentinel: a leaf that nobody asks a
    gradient for. The engine executes its node in a plain `.backward()`, and not if only some gradients are wanted: one
    question in place of one per parameter. A node without inputs would not be made.
    """
    return inputs == 0 or inputs >= SENTINEL_INPUTS


@dataclass(frozen=True)
class JointGraph:
    """One functional FX graph, `signature` says what its placeholders and outputs are.

    With `signature.tangents == ()` there is no backward: an inference graph. `static_inputs` are the primals whose
    memory outlives the call at one address (parameters, buffers); `mutated_inputs` those whose data the epilogue
    overwrites, so their old value may not be read after the forward; `private_inputs` those that the caller does not have,
    so that nobody writes to them. `segments` are the parts of the backward, in the order in which they run. `memory`
    says which tensors a backward changes in place: inputs, results, and tangents. The autograd nodes that do so are
    `effects`, by age among all of the function: groups of nodes that are one segment each.
    """

    module: fx.GraphModule
    signature: GraphSignature
    static_inputs: frozenset[int]
    mutated_inputs: frozenset[int]
    segments: tuple[BackwardSegment, ...] = ()
    private_inputs: frozenset[int] = frozenset()
    memory: tuple[Primal | ForwardResult | Tangent, ...] = ()
    effects: tuple[frozenset[int], ...] = ()

    @property
    def differentiable(self) -> bool:
        return bool(self.signature.tangents)


@dataclass(frozen=True)
class SavedValue:
    """One value that crosses from forward to backward, and why it is saved and not recomputed."""

    slot: Saved | SavedSymInt
    saved_bytes: int
    reason: str
    source: str | None


@dataclass(frozen=True)
class RecomputedValue:
    """One op of the forward that runs again in the backward, and why its result is not saved.

    `traffic_bytes`: what it reads and writes if it runs by itself, 0 for a view. `flops`: floating point operations of a
    product, a convolution or an attention, 0 for other ops.
    """

    name: str
    reason: str
    source: str | None
    traffic_bytes: int
    flops: int


@dataclass(frozen=True)
class GraphHalf:
    """A graph that a backend compiles, with what its placeholders and outputs mean."""

    module: fx.GraphModule
    signature: GraphSignature


def memory_of(half: GraphHalf, segment: BackwardSegment) -> tuple[Memory, ...]:
    """The memory that the graph of a segment takes, and then what it only changes."""
    taken = half.signature.memory
    changed = (change.memory for change in segment.changes if change.tangent is None)
    return (*taken, *(memory for memory in changed if memory not in taken))


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


# --- Compiled --------------------------------------------------------------------------------------------------------

BoxedCallable = Callable[[list], Sequence[Any]]


@dataclass(frozen=True)
class Compiled:
    """What a backend made of a partition: callables that take a list, which they may clear, and return a list or tuple.

    Backward graphs are compiled when they are first needed, one variant at a time: `compile_backward` takes the backward
    half or a specialised copy of it.
    """

    backend: str
    forward: BoxedCallable
    compile_backward: Callable[[GraphHalf], BoxedCallable] | None
