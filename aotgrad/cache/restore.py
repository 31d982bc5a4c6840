"""An entry of the cache -> a compiled function, without tracing, partitioning or lowering.

In: a `StoredPlan` and the function that another process compiled. Out: `RestoredFunction`, an executable without its stages.
Gradients of gradients need the stages; the function is then retraced, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch.fx as fx

from aotgrad import pipeline, torch_compat
from aotgrad.cache.entry import StoredPlan
from aotgrad.cache.graphs import NO_ATTRIBUTES, Attributes, Origins, StoredHalf, digest_of, functions_by_name, text_of
from aotgrad.cache.serialize import Encoder
from aotgrad.capture.trace import FlatFunction
from aotgrad.capture.trace_state import TraceState
from aotgrad.convention import MemorySharing
from aotgrad.errors import ContractError, NoPlanError
from aotgrad.ir import BackwardSegment, GraphHalf, InputAliasInfo, InputSpec, JointGraph
from aotgrad.pipeline import Compiler, Source, TracedJoint
from aotgrad.plan_cache.lock import COMPILING
from aotgrad.runtime.backward import Backward
from aotgrad.runtime.emit import build, make_backwards
from aotgrad.runtime.recomputation import (
    NO_INNER_GRADIENTS,
    NO_SAVED_VALUES,
    Gradients,
    HigherOrder,
    InnerGradients,
    InnerValue,
    Recomputation,
    SavedValues,
)
from aotgrad.telemetry.graph_names import GraphNames
from aotgrad.torch_compat import FakeTensorMode
from aotgrad.transforms.vmap import CompiledBatches


@dataclass(frozen=True)
class RestoredFunction:
    """A compiled function from the cache. Call it with a list of arguments, which it clears."""

    stored: StoredPlan
    forward: GraphHalf
    backwards: list[Backward]
    call: Callable[[list], list]

    def __call__(self, args: list) -> list:
        return self.call(args)

    @property
    def source(self) -> str:
        return self.stored.source

    @property
    def takes_guarded(self) -> bool:
        """Whether it takes values that its guard has computed."""
        return len(self.stored.schedule.arguments) > len(self.stored.convention.order)

    @property
    def depends_on_offsets(self) -> bool:
        return self.stored.depends_on_offsets

    @property
    def arguments(self) -> tuple[tuple[InputSpec, InputAliasInfo | None], ...]:
        """What the trace assumed about each argument, and what happens to it."""
        stored = self.stored
        return tuple((stored.convention.inputs[k], stored.inputs[k]) for k in stored.convention.order)

    def sharing(self, args: Sequence[Any]) -> MemorySharing:
        """How arguments share memory with those that the function changes."""
        return MemorySharing.of(args, [info for _, info in self.arguments])


def restore(
    stored: StoredPlan,
    function: FlatFunction | None,
    compiler: Compiler,
    mode: FakeTensorMode,
    origins: Origins,
    held: Attributes = NO_ATTRIBUTES,
) -> RestoredFunction:
    """The compiled function of an entry.

    Args:
        stored: the entry.
        function: the original function, in this process; `None`: there is none, and no gradients of gradients.
        compiler: how it was compiled.
        mode: the fake mode for the tensors of the entry.
        origins: the stack traces that the graphs refer to.
        held: the attributes that the graphs refer to.
    """
    kept = functions_by_name(compiler.backend.keep)
    texts = (stored.forward, *stored.halves)
    forward, *halves = (StoredHalf(text, mode, origins, held, kept) for text in texts)
    schedule = replace(stored.schedule, segments=tuple(halves))
    names = GraphNames()
    with names.compiling("forward" if halves else "inference"):
        compiled = compiler.backend.compile_forward(forward, stored.static_inputs, bool(halves))
    compiled = pipeline.finish(compiled, (forward, *halves), compiler, compiler.observer(), names)
    retrace = reject_retrace if function is None else Retrace(stored, function, compiler, mode, TraceState.now())
    batches = CompiledBatches.of(compiler, "batched backward of a stored function")
    backwards = make_backwards(schedule, compiled, stored.segments, LazyHigherOrder(retrace, batches))
    return RestoredFunction(stored, forward, backwards, build(schedule, stored.source, compiled, backwards))


def reject_retrace() -> NoReturn:
    """Raises NoPlanError."""
    raise NoPlanError(
        "gradients of gradients (create_graph=True) need the original function, which is not in the file: load it with "
        "recompile=True"
    )


@dataclass(frozen=True)
class Retrace:
    """Retraces a stored function to compute gradients of gradients."""

    stored: StoredPlan
    function: FlatFunction
    compiler: Compiler
    mode: FakeTensorMode
    state: TraceState

    def __call__(self) -> tuple[HigherOrder, bool]:
        """The derivative of the retraced function, and whether its joint graph equals the stored one, node by node.

        The graphs differ if a setting changed that decides what is traced; saved values do not fit then.
        """
        with COMPILING, self.state.active(), torch_compat.outside_transforms():
            source = Source(self.function, (), (), repeated=(self.mode, self.stored.convention))
            traced = pipeline.compile(source, replace(self.compiler, lower=None))
            if not isinstance(traced, TracedJoint) or not has_segments(traced.joint, self.stored.segments):
                raise ContractError("a stored function, retraced, has other gradients")
            higher_order = self.compiler.derive(source, traced, self.compiler)
            return higher_order, joint_digest(traced.joint) == self.stored.joint


def has_segments(joint: JointGraph, segments: Sequence[BackwardSegment]) -> bool:
    """Whether the segments of a joint graph have the same tangents and gradients as others."""
    return segment_interfaces(joint.segments) == segment_interfaces(segments)


def segment_interfaces(segments: Sequence[BackwardSegment]) -> list[tuple[Any, Any]]:
    """The tangents and gradients of each segment."""
    return [(segment.tangents, segment.gradients) for segment in segments]


def joint_digest(joint: JointGraph) -> str:
    """A digest of the nodes, their names, and the segments of a joint graph."""
    nodes = (f"{node.op} {node.name} {name_of_target(node)} {node.args} {node.kwargs}" for node in joint.module.graph.nodes)
    return digest_of("\n".join(nodes), text_of(Encoder().encode((joint.signature, joint.segments))))


def name_of_target(node: fx.Node) -> str:
    """The target of a node as text, the same in every process."""
    return str(node.target) if node.op != "call_function" else torch_compat.function_name(node.target) or str(node.target)


@dataclass
class LazyHigherOrder:
    """Gradients of gradients of a stored function. Implements `runtime.recomputation.HigherOrder`."""

    make: Callable[[], tuple[HigherOrder, bool]]
    batches: CompiledBatches
    made: list[tuple[HigherOrder, bool]] = field(default_factory=list)

    def __call__(
        self,
        segment: int,
        call: Recomputation,
        saved: SavedValues,
        tangents: Gradients,
        wanted: Sequence[bool],
        inner: InnerGradients = NO_INNER_GRADIENTS,
    ) -> Gradients:
        higher_order, is_same = self.retraced
        return higher_order(segment, call, saved if is_same else NO_SAVED_VALUES, tangents, wanted, inner)

    def inner_values(self, segment: int) -> Sequence[InnerValue]:
        return self.retraced[0].inner_values(segment)

    @property
    def retraced(self) -> tuple[HigherOrder, bool]:
        if not self.made:
            self.made.append(self.make())
        return self.made[0]

    def transformed(self, half: GraphHalf, values: Sequence[Any]) -> Gradients:
        return self.batches(half, values)
