"""The entries of the cache: what a process needs to run a compiled function. Graphs are text that is parsed when needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

from aotgrad.convention.dedupe import Dedupe
from aotgrad.convention.sharing import MemorySharing
from aotgrad.guards.data_dependent import Condition, Level
from aotgrad.ir import BackwardSegment, CallingConvention, InputAliasInfo, RecomputedValue, SavedValue
from aotgrad.runtime.schedule import Schedule
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
class ShippedPlan:
    """A plan with its guards, as a file has it.

    Attributes:
        plan: the compiled function.
        dedupe, tensors, facts, values: see `PlanGuards`. `changes`: whether it changes arguments.
        output: the structure of its results, see `shipping.record.spec_form`.
        variants: for each segment of the backward, the variants that were compiled, as tangents and gradients.
        written_over: the segments that were compiled to write over saved values.
    """

    plan: StoredPlan
    dedupe: Dedupe
    tensors: tuple[GuardedTensor, ...]
    facts: tuple[tuple[int, str, Any], ...]
    changes: bool
    values: StoredGuard | None
    output: Any
    variants: tuple[tuple[tuple[tuple[bool, ...], tuple[bool, ...]], ...], ...]
    written_over: tuple[int, ...]


Entry = Union[StoredPlan, StoredSmallGraph]
