"""What the autograd node of a segment runs, and which of eager's nodes run in it.

In: the variants of the segment's graph, and what eager saves in it (`SavingNodes`). Out: a `Backward`, one for all calls.

Sets of tangents, of gradients and of eager's nodes are bit masks: bit k stands for the k-th one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from aotgrad import native, torch_compat
from aotgrad.ir import BackwardSegment, ChangedMemory, GraphHalf, SavingNodes
from aotgrad.runtime.anomaly import find_nan, user_traceback
from aotgrad.runtime.inner_values import InnerValues
from aotgrad.runtime.recomputation import (
    NO_INNER_GRADIENTS,
    Gradients,
    HigherOrder,
    InnerGradients,
    Recomputation,
    SavedValues,
)
from aotgrad.runtime.segments import memory_of
from aotgrad.runtime.steps import Attach
from aotgrad.runtime.variants import VariantCache, VariantKey
from aotgrad.slots import Gradient, Saved, of_kind

EVERYTHING = -1
"""The bit mask of all gradients."""

SizeAndStride = tuple[tuple[int, ...], tuple[int, ...]]

NO_GRADIENTS = (None,) * 5
"""The gradients of the arguments of `Segment.forward` before its inputs."""

PAUSE = 64
"""Backwards without a probe, after a probe that took an exception."""


@dataclass
class EdgeProbe:
    """Asks the engine whether it executes all edges of the running node.

    The probe takes a slow exception in an `autograd.grad` for leaves. Such callers tend to repeat: the next `pause`
    backwards skip it.
    """

    pause: int = 0

    def all_executed(self) -> bool:
        if self.pause:
            self.pause -= 1
            return False
        executed = torch_compat.engine_executes_all_edges()
        if executed is None:
            self.pause = PAUSE
        return executed is True


@dataclass(frozen=True)
class MemoryWrite:
    """A write to memory after a graph has run: result `position`, to the tangent or memory `target`; see `ChangedMemory`."""

    position: int
    target: int
    is_tangent: bool
    version_bumps: int
    for_saved: bool

    @classmethod
    def of(cls, change: ChangedMemory, half: GraphHalf, segment: BackwardSegment) -> MemoryWrite:
        slots = half.signature.outputs
        position = next(k for k, slot in enumerate(slots) if isinstance(slot, Gradient) and slot.of == change.memory)
        if change.tangent is not None:
            return cls(position, segment.tangents.index(change.tangent), True, change.version_bumps, change.for_saved)
        target = memory_of(half, segment).index(change.memory)
        return cls(position, target, False, change.version_bumps, change.for_saved)

    def write(self, results: Gradients, memory: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]) -> None:
        """Write, and raise the version as eager does."""
        target, value = (tangents if self.is_tangent else memory)[self.target], results[self.position]
        if target is None or value is None:
            return
        version = torch_compat.version_of(target)
        target.detach().copy_(value.detach())
        torch_compat.raise_version(target, version, self.version_bumps)


@dataclass(frozen=True)
class Backward:
    """What the autograd node of a segment runs: variants of its graph, and for higher orders another function.

    Attributes:
        segment: its number.
        transformed: runs an uncompiled graph.
        gradient_positions: where the graph returns the gradients of the node's inputs.
        full: the key of the variant with all tangents and all gradients.
        layouts: size and stride of each tangent, if they are not symbolic.
        materialize: the node gets zeros for undefined tangents.
        saving: see `BackwardSegment`. Masks of eager's nodes are masks of its items.
        changes: writes to memory that others see.
        inner: the values inside, through which gradients of gradients pass on to the node.
        needed_positions, pending_positions: the results of `saved_needed` and `saved_needed_later` so far.
        reuses_memory: see `Compiled`.
        inlined: the functions of nodes that compiled autograd has taken over, by wanted gradients.
    """

    variants: VariantCache
    higher_order: Callable[..., Gradients]
    segment: int
    transformed: Callable[[GraphHalf, Sequence[Any]], Gradients]
    gradient_positions: tuple[int, ...]
    full: VariantKey
    layouts: tuple[SizeAndStride, ...]
    materialize: bool
    has_sentinel: bool
    saving: tuple[SavingNodes, ...]
    changes: tuple[MemoryWrite, ...]
    inner: InnerValues
    reuses_memory: bool = False
    needed_positions: dict[VariantKey, tuple[int, ...] | None] = field(default_factory=dict)
    pending_positions: dict[frozenset[VariantKey], tuple[int, ...]] = field(default_factory=dict)
    inlined: dict[tuple[bool, ...], type[torch.autograd.Function]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        variants: VariantCache,
        number: int,
        higher_order: HigherOrder,
        segment: BackwardSegment,
        step: Attach,
        reuses_memory: bool = False,
    ) -> Backward:
        position_of = {output: k for k, output in enumerate(variants.full.signature.outputs)}
        return cls(
            variants=variants,
            higher_order=functools.partial(higher_order, number),
            segment=number,
            transformed=higher_order.transformed,
            gradient_positions=tuple(position_of[gradient] for gradient in variants.gradients),
            full=variants.full_key(),
            layouts=tuple((layout.size, layout.stride) for layout in step.tangents),
            materialize=segment.materialize,
            has_sentinel=segment.has_sentinel,
            saving=segment.saving,
            changes=tuple(MemoryWrite.of(change, variants.full, segment) for change in segment.changes),
            inner=InnerValues(functools.partial(higher_order.inner_values, number)),
            reuses_memory=reuses_memory,
        )

    @functools.cached_property
    def runs_whole(self) -> bool:
        """Whether a backward in the usual case does nothing but run its graph: it checks, writes and keeps no memory."""
        return not self.checks_or_writes and self.frees_all

    @functools.cached_property
    def checks_or_writes(self) -> bool:
        """Whether a node of eager's raises, saved memory that may change, or changes memory."""
        saves_memory = any(nodes.memory for nodes in self.saving)
        return bool(self.failing or self.variants.full.signature.memory or self.changes or saves_memory)

    @functools.cached_property
    def failing(self) -> tuple[tuple[int, str], ...]:
        """The masks of the nodes in `saving` that raise, and what they raise."""
        return tuple((1 << k, nodes.error) for k, nodes in enumerate(self.saving) if nodes.error is not None)

    @functools.cached_property
    def has_symbolic_layouts(self) -> bool:
        """Whether each call has layouts of its own."""
        numbers = (number for layout in self.layouts for part in layout for number in part)
        return any(map(torch_compat.has_symbols, numbers))

    @functools.cached_property
    def below_autograd(self) -> Callable[..., Gradients]:
        """Runs a compiled graph."""
        return native.lookup("below_autograd", torch_compat.run_below_autograd)

    @functools.cached_property
    def saves(self) -> bool:
        return bool(self.saved_slots)

    @functools.cached_property
    def may_have_stand_ins(self) -> bool:
        """Whether gradients of inner values may arrive at the node: it tells them apart from zeros, and has no effect."""
        return not (self.materialize or self.checks_or_writes or self.reuses_memory)

    # -- results

    @functools.cached_property
    def no_gradients(self) -> tuple[None, ...]:
        """The results of the node for arguments of `Segment.forward` that are no inputs of the segment."""
        return (*NO_GRADIENTS, None) if self.has_sentinel else NO_GRADIENTS

    @functools.cached_property
    def node_results(self) -> Callable[[Gradients], tuple[torch.Tensor | None, ...]]:
        """From the results of a graph to those of the node: a gradient for each argument of `Segment.forward`."""
        positions, none = self.gradient_positions, self.no_gradients
        if positions == tuple(range(len(self.variants.full.signature.outputs))):
            return lambda gradients: (*none, *gradients)
        if len(positions) == 1:
            return lambda gradients: (*none, gradients[positions[0]])
        pick = operator.itemgetter(*positions) if positions else lambda gradients: ()
        return lambda gradients: (*none, *pick(gradients))

    def memory_inputs(self, memory: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The memory that the graph takes."""
        return [each.detach() for each in memory[: len(self.variants.full.signature.memory)]]

    def finish(
        self,
        key: VariantKey,
        results: Gradients,
        memory: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
    ) -> tuple[torch.Tensor | None, ...]:
        """Write to memory and return the results of the node. Without any gradient, eager's node does nothing."""
        if self.materialize or any(tangent is not None for tangent in tangents):
            for change in self.changes:
                if not change.for_saved or self.nodes_run(key):
                    change.write(results, memory, tangents)
        return self.node_results(results)

    def derivative(
        self,
        ctx: Any,
        call: Recomputation,
        saved: SavedValues,
        tangents: Gradients,
        wanted: Sequence[bool],
        inner: InnerGradients = NO_INNER_GRADIENTS,
    ) -> tuple[torch.Tensor | None, ...]:
        """The results of the node `ctx`, differentiable if grad mode is on; see `HigherOrder`."""
        gradients = self.higher_order(call, saved, tangents, wanted, inner)
        if self.may_have_stand_ins:
            self.inner.watch(ctx)
        return (*self.no_gradients, *gradients)

    # -- which gradients are wanted

    @functools.cached_property
    def are_wanted(self) -> Callable[[Sequence[Any]], tuple[bool, ...]]:
        """Which autograd nodes the running backward passes a gradient to."""
        return native.lookup("are_wanted", torch_compat.are_wanted)

    @functools.cached_property
    def all_executed(self) -> Callable[[], bool]:
        """Whether the running node passes a gradient along each edge, if that is known before all are asked about.

        In C++ an answer is no exception, so `are_wanted` is asked at once.
        """
        return EdgeProbe().all_executed if native.lookup("are_wanted", None) is None else unknown

    @functools.cached_property
    def gradient_groups(self) -> tuple[tuple[int, ...], ...]:
        """The positions of gradients, grouped: one gradient of a group costs as much as all of them.

        These are views of one tensor to which the same of eager's nodes lead.
        """
        found: dict[Any, list[int]] = {}
        for position, source in enumerate(self.variants.facts.sources):
            leads = tuple(nodes.gradient_mask >> position & 1 for nodes in self.saving)
            found.setdefault((source, leads), []).append(position)
        return tuple(map(tuple, found.values()))

    def wanted_gradients(self, edges: Sequence[Any]) -> tuple[bool, ...]:
        """Which gradients to compute: those that the engine passes on along `edges`, and those that cost no more.

        The engine drops the others.
        """
        if len(self.gradient_groups) == len(edges):
            return self.are_wanted(edges)
        answers = [False] * len(edges)
        first = self.are_wanted([edges[positions[0]] for positions in self.gradient_groups])
        for positions, is_wanted in zip(self.gradient_groups, first, strict=True):
            others = [edges[position] for position in positions[1:]]
            answers[positions[0]] = is_wanted or any(self.are_wanted(others))
        return self.all_of_groups(answers)

    def all_of_groups(self, wanted: Sequence[bool]) -> tuple[bool, ...]:
        """The gradients of all groups of which some are wanted."""
        answers = list(wanted)
        for positions in self.gradient_groups:
            if any(wanted[position] for position in positions):
                for position in positions:
                    answers[position] = True
        return tuple(answers)

    def key_of(self, tangents: Sequence[bool], gradients: Sequence[bool]) -> VariantKey:
        """The key of a variant, which is `full` if it has all."""
        key = VariantKey(tuple(tangents), tuple(gradients))
        return self.full if key.is_full else key

    # -- eager's nodes, and the saved tensors that they need

    @functools.cached_property
    def all_nodes(self) -> int:
        """`nodes_run` of a backward with all tangents and all gradients."""
        return self.nodes_between(bits(self.full.tangents), EVERYTHING)

    def nodes_run(self, key: VariantKey) -> int:
        """The nodes of `saving` that run in eager. Those that lead to no gradient run if all gradients are wanted."""
        if key is self.full:
            return self.all_nodes
        return self.nodes_between(bits(key.tangents), EVERYTHING if all(key.gradients) else bits(key.gradients))

    def nodes_between(self, tangents: int, gradients: int) -> int:
        """The nodes of `saving` that lead from some of the tangents to some of the gradients."""
        led = (nodes.gradient_mask & gradients or gradients == EVERYTHING for nodes in self.saving)
        return bits(bool(nodes.tangent_mask & tangents and wanted) for nodes, wanted in zip(self.saving, led, strict=True))

    def check_overwritten(self, key: VariantKey) -> None:
        """Check that no node that runs needs a value which the call itself overwrote.

        Raises:
            RuntimeError: as eager's.
        """
        run = self.nodes_run(key) if self.failing else 0
        for nodes, message in self.failing:
            if run & nodes:
                raise RuntimeError(message)

    @functools.cached_property
    def saved_slots(self) -> tuple[Saved, ...]:
        return of_kind(self.variants.full.signature.inputs, Saved)

    @functools.cached_property
    def symbolic_dims_of_saved(self) -> dict[int, frozenset[int]]:
        """The symbolic dimensions of the saved tensors, by position."""
        values = (self.variants.full.placeholders[slot].meta["val"] for slot in self.saved_slots)
        return torch_compat.symbolic_dims_by_position(values)

    def saved_needed(self, key: VariantKey) -> tuple[int, ...] | None:
        """The positions of the saved tensors that a variant unpacks; `None` for all."""
        if key is self.full:
            return None
        if key not in self.needed_positions:
            taken = set(self.variants.graph(key)[0].signature.inputs)
            needed = tuple(k for k, slot in enumerate(self.saved_slots) if slot in taken)
            self.needed_positions[key] = None if len(needed) == len(self.saved_slots) else needed
        return self.needed_positions[key]

    @functools.cached_property
    def everything_ran(self) -> frozenset[VariantKey]:
        """The variants that ran after a backward with all tangents and all gradients."""
        return frozenset((self.full,))

    @functools.cached_property
    def frees_all(self) -> bool:
        """Whether a backward with all tangents and all gradients leaves nothing that another one may need."""
        return not self.saves or not self.saved_needed_later(self.everything_ran)

    def saved_needed_later(self, ran: frozenset[VariantKey]) -> tuple[int, ...]:
        """The positions of the saved tensors that later backwards may need.

        These are the backwards that eager can run after the variants in `ran`: they pass through no node that has freed what
        it saved. Those for which eager saves nothing can be repeated.
        """
        if ran not in self.pending_positions:
            self.pending_positions[ran] = tuple(sorted(set().union(*map(self.positions_needed, self.find_pending(ran)))))
        return self.pending_positions[ran]

    def find_pending(self, ran: frozenset[VariantKey]) -> Iterator[VariantKey]:
        """The variants that may run later, one for each tangent: eager frees what a node has saved after it ran."""
        freed = functools.reduce(operator.or_, map(self.nodes_run, ran), 0)
        for tangent, is_defined in enumerate(self.full.tangents):
            freed_below = self.nodes_between(1 << tangent, EVERYTHING) & freed
            behind = zip(self.full.gradients, self.nodes_before_gradients, strict=True)
            pending = tuple(is_wanted and not nodes & freed_below for is_wanted, nodes in behind)
            if is_defined and any(pending):
                yield VariantKey(tuple(k == tangent for k in range(len(self.full.tangents))), pending)

    @functools.cached_property
    def nodes_before_gradients(self) -> tuple[int, ...]:
        """For each gradient, the nodes of `saving` that lead to it."""
        positions = range(len(self.full.gradients))
        return tuple(bits(bool(nodes.gradient_mask >> position & 1) for nodes in self.saving) for position in positions)

    def positions_needed(self, key: VariantKey) -> Sequence[int]:
        needed = self.saved_needed(key)
        return range(len(self.saved_slots)) if needed is None else needed

    # -- without the compiled graph

    def fill_undefined(
        self, tangents: Sequence[torch.Tensor | None], layouts: Sequence[SizeAndStride]
    ) -> list[torch.Tensor]:
        """`tangents` with zeros in place of undefined ones."""
        triples = zip(tangents, layouts, self.variants.facts.formats, strict=True)
        return [zeros(layout, *format) if tangent is None else tangent for tangent, layout, format in triples]

    def uncompiled(
        self, key: VariantKey, saved: Sequence[Any], tangents: Gradients, layouts: Sequence[SizeAndStride]
    ) -> tuple[GraphHalf, list[Any], frozenset[int]]:
        """The graph of a variant, its inputs, and the positions of results to drop: for running it in another way."""
        half, undefined = self.variants.graph(key)
        pairs = zip(tangents, layouts, strict=True)
        ready = [t if torch_compat.is_wrapped(t) else with_traced_layout(t, layout) for t, layout in pairs]
        values = [*saved, *(self.fill_undefined(ready, layouts) if undefined is not None else ready)]
        return half, [values[position] for position in self.variants.positions(half)], undefined or frozenset()

    def run_transformed(
        self, key: VariantKey, saved: Sequence[Any], tangents: Gradients, layouts: Sequence[SizeAndStride]
    ) -> Gradients:
        """The results of a variant where its compiled graph is not right.

        Inside a transform it cannot run, since tangents are wrapped. Under autocast, eager casts in the backward, too.
        """
        half, values, dropped = self.uncompiled(key, saved, tangents, layouts)
        results = self.transformed(half, values)
        return [None if k in dropped else result for k, result in enumerate(results)]

    def user_traceback(self, frames: Sequence[str]) -> list[str]:
        """Where a call made its node; see `anomaly.py`."""
        full = self.variants.full
        return user_traceback(frames, full.module, full.signature.input_position(full.signature.incoming[0]))

    def find_nan(self, key: VariantKey, saved: Sequence[Any], tangents: Gradients, layouts: Sequence[SizeAndStride]) -> None:
        """Raise if a variant computes a NaN; see `anomaly.py`. Inside a transform, tensors have no values to look at."""
        if not torch_compat.transform_is_open():
            half, values, _ = self.uncompiled(key, saved, tangents, layouts)
            find_nan(half.module, values)


def unknown() -> bool:
    return False


def bits(flags: Iterable[bool]) -> int:
    """A bit mask of the positions at which `flags` are true."""
    return sum(1 << k for k, flag in enumerate(flags) if flag)


def zeros(layout: SizeAndStride, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(*layout, dtype=dtype, device=device).zero_()


def with_traced_layout(tangent: torch.Tensor | None, layout: SizeAndStride) -> torch.Tensor | None:
    """A tangent with the strides that the backward was traced with; a sparse one has none."""
    if tangent is None or tangent.layout is not torch.strided:
        return tangent
    size, stride = layout
    if tangent.stride() == stride and not (tangent.is_conj() or tangent.is_neg()):
        return tangent
    return torch.empty_strided(size, stride, dtype=tangent.dtype, device=tangent.device).copy_(tangent)
