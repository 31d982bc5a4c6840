"""The entries of the cache: what a process needs to run a compiled function. Graphs are text that is parsed when needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

from aotgrad.convention.dedupe import Dedupe
from aotgrad.convention.sharing import MemorySharing
from aotgrad.guards.data_dependent import Condition, Level
from aotgrad.ir import BackwardSegment, CallingConvention, InputAliasInfo, RecomputedValue, SavedValue
from aotgrad.runtime.schedule import Schedule
from aotgrad.runtime.variants import VariantKey
from aotgrad.slots import SlotSignature


@dataclass(frozen=True)
class GraphText:
    """A graph as text. Graphs with the same operators and arguments have the same `digest`.

    `is_symbolic`: compiling the graph may add conditions on its sizes.
    """

    text: str
    digest: str
    signature: SlotSignature
    is_symbolic: bool


@dataclass(frozen=True)
class StoredPlan:
    """A compiled function without the backend's code.

    `conditions` are symbolic: it holds where they do, and whoever takes it has to assume them as a trace would.
    `sharing` is how the inputs shared memory. `schedule` is without its segments, which are `halves`. `joint` is a digest of
    the joint graph: gradients of gradients retrace it.
    """

    convention: CallingConvention
    inputs: tuple[InputAliasInfo | None, ...]
    sharing: MemorySharing
    schedule: Schedule
    source: str
    segments: tuple[BackwardSegment, ...]
    forward: GraphText
    halves: tuple[GraphText, ...]
    static_inputs: frozenset[int]
    joint: str
    depends_on_offsets: bool
    conditions: tuple[Any, ...]


@dataclass(frozen=True)
class StoredSmallGraph:
    """A function that is too small to compile."""

    ops: int
    reason: str


@dataclass(frozen=True)
class StoredPartition:
    """The halves of a joint graph, valid where `conditions` hold."""

    forward: GraphText
    backward: GraphText | None
    saved: tuple[SavedValue, ...]
    recomputed: tuple[RecomputedValue, ...]
    conditions: tuple[Any, ...]


@dataclass(frozen=True)
class StoredGuard:
    """A `ValueGuard`: `answers` computes the values; `values`, for a backend, what it takes besides the arguments."""

    level: Level
    names: tuple[str, ...]
    inputs: tuple[int, ...]
    conditions: tuple[Condition, ...]
    draws: bool
    values: GraphText | None
    static_inputs: frozenset[int]
    answers: GraphText


@dataclass(frozen=True)
class GuardedTensor:
    """What a plan expects of a tensor besides its traced value, `fake`."""

    fake: Any
    is_parameter: bool
    requires_grad: bool
    is_conj: bool
    is_neg: bool
    is_inference: bool


@dataclass(frozen=True)
class StoredVariant:
    """A variant of a backward, which a process has used; for `undefined` see `Variant`.

    `graph`: `None` if it is the full graph.
    """

    key: VariantKey
    graph: GraphText | None
    undefined: frozenset[int] | None


@dataclass(frozen=True)
class StoredBackward:
    """What a process has found out about the backward of a segment besides its `BackwardFacts`.

    Attributes:
        variants: those that were compiled.
        needed: for variants that may follow them, the positions of the saved tensors that they unpack; `None`: of all.
        is_written_over: it was compiled to write over saved values.
    """

    variants: tuple[StoredVariant, ...]
    needed: tuple[tuple[VariantKey, tuple[int, ...] | None], ...]
    is_written_over: bool


@dataclass(frozen=True)
class ShippedPlan:
    """A plan with its guards, as a file has it.

    Attributes:
        plan: the compiled function.
        dedupe, tensors, facts, values: see `PlanGuards`. `changes`: whether it changes arguments.
        output: the structure of its results, see `shipping.record.spec_form`.
        backwards: one for each segment.
    """

    plan: StoredPlan
    dedupe: Dedupe
    tensors: tuple[GuardedTensor, ...]
    facts: tuple[tuple[int, str, Any], ...]
    changes: bool
    values: StoredGuard | None
    output: Any
    backwards: tuple[StoredBackward, ...]


Entry = Union[StoredPlan, StoredSmallGraph]
