"""The autograd node of a compiled region, and what it runs when a gradient arrives.

The compiled forward has already run when the node is made: `Segment.forward` only hands its results to autograd. The node
asks the engine which gradients are wanted, sees which tangents are defined, and runs the variant of the backward for that.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch

from aotgrad import native, torch_compat
from aotgrad.ir import BackwardSegment, BoxedCallable, ChangedMemory, GraphHalf, SavingNodes, memory_of
from aotgrad.runtime.anomaly import find_nan, user_traceback
from aotgrad.runtime.recomputation import Gradients, HigherOrder, Recomputation, check_version
from aotgrad.runtime.saved import release, release_all, saved_of, unpack, unpack_and_release
from aotgrad.runtime.steps import Attach
from aotgrad.runtime.variants import VariantCache, VariantKey, sources
from aotgrad.slots import Gradient, Saved, of_kind


@torch.inference_mode(False)
@torch.enable_grad()
def make_sentinel() -> tuple[torch.Tensor, torch.autograd.graph.Node]:
    """A leaf and its node, in whichever mode and for whichever default device the package is imported."""
    leaf = torch.zeros((), dtype=torch.float32, device="cpu", requires_grad=True)
    return leaf, torch.autograd.graph.get_gradient_edge(leaf).node


SENTINEL, SENTINEL_NODE = make_sentinel()
"""See `needs_sentinel`."""

EVERYTHING = -1
"""The bit mask of all gradients."""

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Size and stride."""


PAUSE = 64
"""Backwards in which the edges of a node are not asked, after one in which that took an exception."""


@dataclass
class Edges:
    """Asks the engine whether it executes all edges of a node. Who calls `autograd.grad` for leaves does so again: after
    one such call, so many backwards as `pause` are not asked.
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
        """Write, and count it as eager does."""
        target, value = (tangents if self.is_tangent else memory)[self.target], results[self.position]
        if target is None or value is None:
            return
        version = torch_compat.version_of(target)
        target.detach().copy_(value.detach())
        torch_compat.raise_version(target, version, self.version_bumps)


@dataclass(frozen=True)
class Backward:
    """What the autograd node of a segment runs: variants of its graph, and for higher orders another function.

    `gradient_positions` are where the graph returns the gradients of the node's inputs, `formats` the dtype and device of
    each tangent, `layouts` size and stride, if they are not symbolic. `materialize`: the node gets zeros for undefined
    tangents. `transformed` runs an uncompiled graph. `watched_inputs` (by position) are those that eager saves and the
    segment does not, with the nodes that do, as a bit mask: if one runs, the version must be the same. `saving`: see
    `BackwardSegment`; `saved_by` are the nodes among them that save each saved tensor, as a bit mask. `changes` are writes
    to memory that others see. `needs` and `pending` remember what `needed` and `needed_later` found.
    """

    variants: VariantCache
    higher_order: Callable[[Recomputation, dict[Saved, torch.Tensor], Gradients, Sequence[bool]], Gradients]
    transformed: Callable[[GraphHalf, Sequence[Any]], Gradients]
    gradient_positions: tuple[int, ...]
    full: VariantKey
    layouts: tuple[Layout, ...]
    watched_inputs: tuple[tuple[int, int], ...]
    formats: tuple[tuple[torch.dtype, torch.device], ...]
    materialize: bool
    has_sentinel: bool
    saving: tuple[SavingNodes, ...]
    saved_by: tuple[int, ...]
    changes: tuple[MemoryWrite, ...]
    needs: dict[VariantKey, tuple[int, ...] | None] = field(default_factory=dict)
    pending: dict[int, frozenset[int]] = field(default_factory=dict)
    edges: Edges = field(default_factory=Edges)

    @classmethod
    def of(
        cls,
        variants: VariantCache,
        number: int,
        higher_order: HigherOrder,
        segment: BackwardSegment,
        step: Attach,
        saved_by: tuple[int, ...],
    ) -> Backward:
        outputs = variants.full.signature.outputs
        position_of = {output: k for k, output in enumerate(outputs)}
        positions = tuple(position_of[gradient] for gradient in variants.gradients)
        formats = tangent_formats(variants.full)
        changes = tuple(MemoryWrite.of(change, variants.full, segment) for change in segment.changes)
        of_segment, full = functools.partial(higher_order, number), variants.full_key()
        layouts = tuple((layout.size, layout.stride) for layout in step.tangents)
        return cls(
            variants=variants,
            higher_order=of_segment,
            transformed=higher_order.transformed,
            gradient_positions=positions,
            full=full,
            layouts=layouts,
            watched_inputs=step.watched_inputs,
            formats=formats,
            materialize=segment.materialize,
            has_sentinel=segment.has_sentinel,
            saving=segment.saving,
            saved_by=saved_by,
            changes=changes,
        )

    @property
    def whole(self) -> BoxedCallable | None:
        """The compiled graph of the usual case, once it is there, if none of eager's nodes raises or writes in it."""
        return None if self.failing or self.variants.full.signature.memory or self.changes else self.variants.run_whole

    @functools.cached_property
    def failing(self) -> tuple[tuple[int, str], ...]:
        """Those of `saving` that raise, as a bit mask each, and what they raise."""
        return tuple((1 << k, nodes.error) for k, nodes in enumerate(self.saving) if nodes.error is not None)

    @functools.cached_property
    def below_autograd(self) -> Callable[..., Gradients]:
        """Runs a compiled graph."""
        return native.offered("below_autograd", torch_compat.run_below_autograd)

    @functools.cached_property
    def saves(self) -> bool:
        return bool(self.saved_by)

    @functools.cached_property
    def no_gradients(self) -> tuple[None, ...]:
        """What the node returns for arguments of `Segment.forward` that are no inputs of the segment."""
        return (*NO_GRADIENTS, None) if self.has_sentinel else NO_GRADIENTS

    @functools.cached_property
    def returned(self) -> Callable[[Gradients], tuple[torch.Tensor | None, ...]]:
        """What the node returns, of what a graph does: a gradient for each argument of `Segment.forward`."""
        positions, none = self.gradient_positions, self.no_gradients
        if positions == tuple(range(len(self.variants.full.signature.outputs))):
            return lambda gradients: (*none, *gradients)
        if len(positions) == 1:
            return lambda gradients: (*none, gradients[positions[0]])
        pick = operator.itemgetter(*positions) if positions else lambda gradients: ()
        return lambda gradients: (*none, *pick(gradients))

    def taken(self, memory: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The memory that the graph takes."""
        return [each.detach() for each in memory[: len(self.variants.full.signature.memory)]]

    def finished(
        self,
        key: VariantKey,
        results: Gradients,
        memory: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
    ) -> tuple[torch.Tensor | None, ...]:
        """What the node returns, after its writes to memory: eager's node does nothing where no gradient arrives."""
        if self.materialize or any(tangent is not None for tangent in tangents):
            for change in self.changes:
                if not change.for_saved or self.nodes_run(key):
                    change.write(results, memory, tangents)
        return self.returned(results)

    @functools.cached_property
    def alike(self) -> tuple[tuple[int, ...], ...]:
        """The gradients by position, together those of which one costs no more than all: views of one tensor, to which the
        same of eager's nodes lead.
        """
        found: dict[Any, list[int]] = {}
        for position, source in enumerate(sources(self.variants.full, self.variants.gradients)):
            leads = tuple(nodes.gradient_mask >> position & 1 for nodes in self.saving)
            found.setdefault((source, leads), []).append(position)
        return tuple(map(tuple, found.values()))

    def wanted(self, edges: Sequence[Any]) -> tuple[bool, ...]:
        """Which gradients to compute: those that the engine passes on along `edges`, and those that cost no more.

        The engine drops what it did not ask for.
        """
        if len(self.alike) == len(edges):
            return torch_compat.are_wanted(edges)
        answers = [False] * len(edges)
        first = torch_compat.are_wanted([edges[positions[0]] for positions in self.alike])
        for positions, is_wanted in zip(self.alike, first, strict=True):
            others = [edges[position] for position in positions[1:]]
            if is_wanted or any(torch_compat.are_wanted(others)):
                for position in positions:
                    answers[position] = True
        return tuple(answers)

    @functools.cached_property
    def all_nodes(self) -> int:
        """What `nodes_run` says of a backward with all tangents and all gradients."""
        return self.nodes_between(bits(self.full.tangents), EVERYTHING)

    def nodes_run(self, key: VariantKey) -> int:
        """Which of `saving` run in eager, as a bit mask. Those that lead nowhere do, if all gradients are wanted."""
        if key is self.full:
            return self.all_nodes
        return self.nodes_between(bits(key.tangents), EVERYTHING if all(key.gradients) else bits(key.gradients))

    def nodes_between(self, tangents: int, gradients: int) -> int:
        """Which of `saving` lead from some of the tangents to some of the gradients; all of these are bit masks."""
        led = (nodes.gradient_mask & gradients or gradients == EVERYTHING for nodes in self.saving)
        return bits(bool(nodes.tangent_mask & tangents and wanted) for nodes, wanted in zip(self.saving, led, strict=True))

    def needed(self, key: VariantKey) -> tuple[int, ...] | None:
        """Which saved tensors a variant unpacks, by position; `None` for all.

        Those that its graph takes, and those that eager's nodes unpack: if one was changed in place, that is an error.
        """
        if key is self.full:
            return None
        if key not in self.needs:
            taken, run = set(self.variants.graph(key)[0].signature.inputs), self.nodes_run(key)
            slots = enumerate(zip(self.saved_slots, self.saved_by, strict=True))
            needed = tuple(k for k, (slot, nodes) in slots if slot in taken or nodes & run)
            self.needs[key] = None if len(needed) == len(self.saved_by) else needed
        return self.needs[key]

    def needed_later(self, ran: Iterable[VariantKey]) -> frozenset[int]:
        """Which saved tensors eager still has after backwards that retained nothing: others than those may need them."""
        nodes = functools.reduce(operator.or_, map(self.nodes_run, ran))
        if nodes not in self.pending:
            self.pending[nodes] = self.find_needed_later(nodes)
        return self.pending[nodes]

    def find_needed_later(self, ran: int) -> frozenset[int]:
        """The same, from the nodes that ran, as a bit mask."""
        tangents, gradients = (range(len(flags)) for flags in (self.full.tangents, self.full.gradients))
        paths = {pair: self.nodes_between(1 << pair[0], 1 << pair[1]) for pair in itertools.product(tangents, gradients)}
        left = [pair for pair, nodes in paths.items() if nodes and not nodes & ran]
        if not left:
            return frozenset()
        roots, ends = map(set, zip(*left, strict=True))
        needed = self.needed(VariantKey(tuple(k in roots for k in tangents), tuple(k in ends for k in gradients)))
        return frozenset(range(len(self.saved_by)) if needed is None else needed)

    @functools.cached_property
    def saved_slots(self) -> tuple[Saved, ...]:
        return of_kind(self.variants.full.signature.inputs, Saved)

    def with_zeros(self, tangents: Sequence[torch.Tensor | None], layouts: Sequence[Layout]) -> list[torch.Tensor]:
        """`tangents` with zeros for those that are undefined."""
        triples = zip(tangents, layouts, self.formats, strict=True)
        return [zeros(layout, *format) if tangent is None else tangent for tangent, layout, format in triples]

    def uncompiled(
        self, key: VariantKey, saved: Sequence[Any], tangents: Gradients, layouts: Sequence[Layout]
    ) -> tuple[GraphHalf, list[Any], frozenset[int]]:
        """The graph of a variant, its inputs, and which of its results to drop: for running it in another way."""
        half, undefined = self.variants.graph(key)
        pairs = zip(tangents, layouts, strict=True)
        ready = [t if torch_compat.is_wrapped(t) else as_traced(t, layout) for t, layout in pairs]
        values = [*saved, *(self.with_zeros(ready, layouts) if undefined is not None else ready)]
        return half, [values[position] for position in self.variants.positions(half)], undefined or frozenset()

    def run_transformed(
        self, key: VariantKey, saved: Sequence[Any], tangents: Gradients, layouts: Sequence[Layout]
    ) -> Gradients:
        """What a variant returns where its compiled graph is not right.

        Inside a transform it cannot run, as tangents are wrapped; under autocast, eager casts in the backward, too.
        """
        half, values, dropped = self.uncompiled(key, saved, tangents, layouts)
        results = self.transformed(half, values)
        return [None if k in dropped else result for k, result in enumerate(results)]

    def user_traceback(self, frames: Sequence[str]) -> list[str]:
        """Where a call made its node; see `anomaly.py`."""
        full = self.variants.full
        return user_traceback(frames, full.module, full.signature.input_position(full.signature.incoming[0]))

    def find_nan(self, key: VariantKey, saved: Sequence[Any], tangents: Gradients, layouts: Sequence[Layout]) -> None:
        """Raise if a variant makes a NaN; see `anomaly.py`. Inside a transform, tensors have no values to look at."""
        if not torch_compat.transform_is_open():
            half, values, _ = self.uncompiled(key, saved, tangents, layouts)
            find_nan(half.module, values)


def bits(flags: Iterable[bool]) -> int:
    """A bit mask of the positions at which `flags` are true."""
    return sum(1 << k for k, flag in enumerate(flags) if flag)


def tangent_formats(half: GraphHalf) -> tuple[tuple[torch.dtype, torch.device], ...]:
    """Dtype and device of each tangent."""
    slots = dict(zip(half.signature.inputs, half.module.graph.find_nodes(op="placeholder"), strict=True))
    values = [slots[slot].meta["val"] for slot in half.signature.incoming]
    return tuple((value.dtype, value.device) for value in values)


class CallDetails(NamedTuple):
    """What no schedule can know of a call: sizes and layouts that are symbolic, and results that are watched.

    `watched_results` are (tensor, version, nodes): tensors that eager saves and the segment does not, with the nodes that
    do, as a bit mask: if one runs, the version must be the same. `memory` is what a backward reads as it is then, and
    changes.
    """

    sizes: tuple[int, ...]
    layouts: tuple[Layout, ...] | None
    watched_results: tuple[tuple[torch.Tensor, int, int], ...] = ()
    memory: tuple[torch.Tensor, ...] = ()


class Segment(torch.autograd.Function):
    """The autograd node of one segment: its outputs were computed before, its inputs are what it has gradients for.

    `recomputation`: what a gradient of the gradient would be computed from. `details`: `None` if the schedule says all.
    """

    @staticmethod
    def forward(
        ctx: Any,
        backward: Backward,
        outputs: tuple[torch.Tensor, ...],
        saved: tuple[torch.Tensor, ...],
        recomputation: Recomputation,
        details: CallDetails | None,
        *inputs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(backward.materialize)
        if saved:
            ctx.save_for_backward(*saved)
        ctx.backward, ctx.recomputation = backward, recomputation
        if details is not None:
            ctx.sizes, ctx.layouts, ctx.watched_results, ctx.memory = details
        if torch.is_anomaly_enabled():
            ctx.metadata["traceback_"] = backward.user_traceback(ctx.metadata["traceback_"])
        return outputs

    @staticmethod
    @torch_compat.hidden_from_dynamo
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        backward: Backward = ctx.backward
        layouts = ctx.layouts or backward.layouts
        is_full = is_usual(tangents, backward)
        if is_full and backward.whole is not None and not (ctx.ran or is_watched_or_transformed()):
            return run_whole(ctx, backward, tangents, layouts)
        key = backward.full if is_full else variant_key(backward, tangents)
        if backward.failing:
            check_overwritten(backward, key)
        if ctx.ran:
            check_second_run(ctx, key)
        if backward.watched_inputs or ctx.watched_results:
            check_watched(ctx, key)
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            backward.find_nan(key, [*ctx.sizes, *unpack(ctx, key), *backward.taken(ctx.memory)], tangents, layouts)
        creates_graph = torch.is_grad_enabled()
        starts_anew = creates_graph or (ctx.of_dual_numbers and torch_compat.forward_mode_is_open())
        if starts_anew and (ctx.recomputation is not None or backward.nodes_run(key)):
            with torch.enable_grad():
                gradients = backward.higher_order(recomputation_of(ctx), saved_of(ctx, key), tangents, key.gradients)
            release(ctx, key)
            return (*backward.no_gradients, *(gradients if creates_graph else map(detached, gradients)))
        if creates_graph or torch_compat.any_autocast_enabled() or torch_compat.is_transformed(tangents):
            values = [*ctx.sizes, *unpack_and_release(ctx, key), *backward.taken(ctx.memory)]
            return backward.finished(key, backward.run_transformed(key, values, tangents, layouts), ctx.memory, tangents)
        variant = backward.variants.get(key)
        values = [*ctx.sizes, *unpack_and_release(ctx, key), *backward.taken(ctx.memory)]
        ready = map(as_traced, tangents, layouts)
        values += ready if variant.undefined is None else backward.with_zeros(list(ready), layouts)
        with torch_compat.below_autograd():
            gradients = variant(values)
        return backward.finished(key, gradients, ctx.memory, tangents)


def is_watched_or_transformed() -> bool:
    """Whether a backward differs from the graph that was compiled for it, or does more."""
    return (
        torch.is_grad_enabled()
        or torch_compat.any_autocast_enabled()
        or torch.is_anomaly_enabled()
        or torch_compat.transform_is_open()
        or torch_compat.forward_mode_is_open()
    )


def run_whole(ctx: Any, backward: Backward, tangents: Sequence[Any], layouts: Sequence[Layout]) -> tuple[Any, ...]:
    """The first backward of a node with all tangents and gradients: the usual case, in which each call of Python counts."""
    if backward.watched_inputs or ctx.watched_results:
        check_watched(ctx, backward.full)
    values = [*ctx.sizes, *ctx.saved_tensors] if backward.saves else [*ctx.sizes]
    if not torch_compat.graph_is_retained():
        release_all(ctx, backward.full)
    values += map(as_traced, tangents, layouts)
    return backward.returned(backward.below_autograd(backward.whole, values))


DEFAULTS: dict[str, Any] = {"sizes": (), "layouts": None, "watched_results": (), "memory": (), "ran": (), "kept": None}
torch_compat.set_defaults(Segment, **DEFAULTS, of_dual_numbers=False)

NO_GRADIENTS = (None,) * 5
"""Those of the arguments of `Segment.forward` that stand before its inputs."""

LEADING_ARGUMENTS = len(NO_GRADIENTS) + 1
"""With the sentinel, for nodes that have one."""


def mark_as_dual(result: torch.Tensor) -> None:
    """Tell the nodes that a call with dual numbers gave its result that it was one.

    As long as the forward-mode level is open, what they have saved is dual in eager, and so are the gradients. These are
    computed as gradients of gradients are, which start from the inputs.
    """
    first: Any = result.grad_fn
    while first is not None and not is_segment(first) and first.next_functions:
        first = first.next_functions[0][0]  # the result is a view
    if first is None:
        return
    left: list[Any] = [first]
    while left:
        node = left.pop()
        if is_segment(node) and node.recomputation is first.recomputation and not node.of_dual_numbers:
            node.of_dual_numbers = True
            left += [behind for behind, _ in node.next_functions]


def is_segment(node: Any) -> bool:
    return getattr(node, "_forward_cls", None) is Segment


class History(torch.autograd.Function):
    """A stand-in for a tensor that is about to be changed in place: its gradient is that of the tensor as it was."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return stand_in(tensor.size(), tensor.dtype, tensor.device)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        return gradient


def recomputation_of(ctx: Any) -> Recomputation:
    """What to compute a gradient of the gradient from.

    Raises:
        RuntimeError: eager's, if an earlier backward let go of it.
    """
    if ctx.recomputation is None:
        ctx.saved_tensors  # noqa: B018  (freed: raises eager's message)
    return cast(Recomputation, ctx.recomputation)


def check_second_run(ctx: Any, key: VariantKey) -> None:
    """Raise what eager would: a backward needs what an earlier one freed.

    Raises:
        RuntimeError: as eager's.
    """
    needed = ctx.backward.nodes_run(key)
    if any(needed & ctx.backward.nodes_run(earlier) for earlier in ctx.ran):
        torch_compat.raise_second_backward()


def check_overwritten(backward: Backward, key: VariantKey) -> None:
    """Raise what eager would: a node that runs needs a value which the call itself has overwritten.

    Raises:
        RuntimeError: as eager's.
    """
    run = backward.nodes_run(key)
    for nodes, message in backward.failing:
        if run & nodes:
            raise RuntimeError(message)


def check_watched(ctx: Any, key: VariantKey) -> None:
    """Raise what eager would: a value that a node which runs has saved was changed in place.

    Raises:
        RuntimeError: as eager's.
    """
    run = ctx.backward.nodes_run(key)
    if ctx.recomputation is not None:
        ctx.recomputation.check_unchanged(index for index, nodes in ctx.backward.watched_inputs if nodes & run)
    for tensor, version, nodes in ctx.watched_results:
        if nodes & run:
            check_version(tensor, version)


def detached(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient without history, with its tangent."""
    if gradient is None:
        return None
    dual = torch_compat.unpack_dual(gradient)
    tangent = None if dual.tangent is None else dual.tangent.detach()
    return torch_compat.pack_dual(torch_compat.Dual(dual.primal.detach(), tangent), None)


def stand_in(size: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """A tensor of one element's memory whose gradient has the given type."""
    return torch.empty_strided(size, (0,) * len(size), dtype=dtype, device=device)


def zeros(layout: Layout, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(*layout, dtype=dtype, device=device).zero_()


def is_usual(tangents: Sequence[torch.Tensor | None], backward: Backward) -> bool:
    """Whether every tangent is defined and every gradient wanted, if that can be found out fast; see `variant_key`."""
    for tangent in tangents:
        if tangent is None:
            return False
    return torch_compat.is_wanted(SENTINEL_NODE) if backward.has_sentinel else backward.edges.all_executed()


def variant_key(backward: Backward, tangents: Sequence[torch.Tensor | None]) -> VariantKey:
    """The key of the running node."""
    gradients = backward.full.gradients
    if not (backward.has_sentinel and torch_compat.is_wanted(SENTINEL_NODE)):
        gradients = backward.wanted(torch_compat.edges_of_running_node()[backward.has_sentinel :])
    key = VariantKey(tuple(tangent is not None for tangent in tangents), gradients)
    return backward.full if key.is_full else key


def as_traced(tangent: torch.Tensor | None, layout: Layout) -> torch.Tensor | None:
    """A tangent with the strides that the backward was traced with."""
    if tangent is None:
        return None
    size, stride = layout
    if tangent.layout is torch.strided and tangent.stride() == stride and not (tangent.is_conj() or tangent.is_neg()):
        return tangent
    return torch.empty_strided(size, stride, dtype=tangent.dtype, device=tangent.device).copy_(tangent)
