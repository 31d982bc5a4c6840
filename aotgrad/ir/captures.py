"""`Capture`: what the trace of a function found, with what it was told of the inputs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, Union

import torch
import torch.fx as fx

from aotgrad.graph.geometry import Geometry
from aotgrad.graph.kept_calls import KeptCall
from aotgrad.graph.symbols import bound_symbol
from aotgrad.guards.data_dependent import ValueGuard
from aotgrad.slots import Primal


@dataclass(frozen=True)
class InputHint:
    """What the caller knows about an argument.

    Attributes:
        static: it is a parameter or buffer.
        dynamic_dims: which of its sizes are symbolic.
        fake: its fake, if there is one already.
        part: which part of which argument it is, if the argument is a wrapper subclass: `"argument 0.a"`.
        path: its name in a module, `"layers.0.weight"`.
        is_used: the function is not known to read only its size.
    """

    static: bool = False
    dynamic_dims: frozenset[int] = frozenset()
    fake: torch.Tensor | None = None
    part: str = ""
    path: str | None = None
    is_used: bool = True


@dataclass(frozen=True)
class TensorInput:
    """A tensor placeholder, with what the trace assumed about it.

    Attributes:
        is_static: it is a parameter or buffer; its memory outlives the call at one address.
        is_view: it requires grad and is a view.
        is_view_of_leaf: it is a view of a leaf that requires grad; eager refuses to change it in place.
        is_converted_view: it is a view with another dtype, or a conjugated one.
        is_forbidden_after_a_write: it is a view that autograd refuses to use after a write to its base.
        part, path, is_used: see `InputHint`.
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
    is_used: bool = field(default=True, kw_only=True)


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

    @functools.cached_property
    def places_of_symbols(self) -> dict[str, tuple[int, int | None]]:
        """Where a call finds each symbol: an input that is a number, or a dimension of an input."""
        found: dict[str, tuple[int, int | None]] = {}
        for index, spec in enumerate(self.inputs):
            sizes = [(spec.value, None)] if isinstance(spec, SymInput) else list(zip(spec.fake.size(), itertools.count()))
            symbols = ((bound_symbol(size), dim) for size, dim in sizes)
            found.update({str(symbol): (index, dim) for symbol, dim in symbols if symbol is not None})
        return found

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

    def forgetting_later_numbers(self) -> Callable[[], None]: ...

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
