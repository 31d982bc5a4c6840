"""The autograd node of a compiled segment.

The compiled forward has run before the node is made: `Segment.forward` only hands its results to autograd. When a gradient
arrives, the node asks the engine which gradients are wanted, and runs the variant of the backward for these and for the
tangents that are defined.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch

from aotgrad import torch_compat
from aotgrad.graph.autograd_nodes import nodes_reached
from aotgrad.graph.floats import halves_of_float
from aotgrad.runtime.backward import Backward, SizeAndStride, with_traced_layout
from aotgrad.runtime.inlined import InlinedBackward
from aotgrad.runtime.recomputation import NO_INNER_GRADIENTS, Gradients, InnerGradients, Recomputation, check_version
from aotgrad.runtime.reused_memory import OF_THREAD, keep_gradients
from aotgrad.runtime.saved_tensors import (
    KeptTensor,
    keep_all,
    release,
    release_all,
    saved_at,
    saved_values,
    unpack,
    unpack_and_release,
    unpack_unchanged,
)
from aotgrad.runtime.variants import VariantKey
from aotgrad.slots import Saved

Tensor, STRIDED = torch.Tensor, torch.strided  # looked up once


@torch.inference_mode(False)
@torch.enable_grad()
def make_sentinel() -> tuple[torch.Tensor, torch.autograd.graph.Node]:
    """A leaf and its node, whatever mode and default device the package is imported under."""
    leaf = torch.zeros((), dtype=torch.float32, device="cpu", requires_grad=True)
    return leaf, torch.autograd.graph.get_gradient_edge(leaf).node


SENTINEL, SENTINEL_NODE = make_sentinel()
"""See `needs_sentinel`."""


class CallDetails(NamedTuple):
    """What only the call knows: symbolic sizes and layouts, and memory that changes in place.

    `memory` is what this backward reads, as it is when it runs, or changes. `watched` are (tensor, version, nodes): tensors
    that own the memory of values that eager saves, and a bit mask of the nodes that save them. If one of these runs, the
    version must be unchanged.
    """

    sizes: tuple[int, ...]
    layouts: tuple[SizeAndStride, ...] | None
    memory: tuple[torch.Tensor, ...] = ()
    watched: tuple[tuple[torch.Tensor, int, int], ...] = ()


class Segment(torch.autograd.Function):
    """The autograd node of one segment. Its outputs were computed before; its inputs are what it has gradients for.

    `recomputation` has the inputs of gradients of gradients. `details` is `None` if the schedule says all.
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
            ctx.sizes, ctx.layouts, ctx.memory, ctx.watched = details
        if backward.reuses_memory:
            ctx.late = OF_THREAD.late
        if torch.is_anomaly_enabled():
            ctx.metadata["traceback_"] = backward.user_traceback(ctx.metadata["traceback_"])
        return outputs

    @staticmethod
    @torch_compat.hide_from_dynamo
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        backward: Backward = ctx.backward
        if ctx.is_differentiated and ctx.recomputation is not None and not torch.is_grad_enabled():
            backward.inner.open(ctx.recomputation)
        layouts = ctx.layouts or backward.layouts
        if ctx.stand_ins:
            own, arrived = tangents[: -ctx.stand_ins], tangents[-ctx.stand_ins :]
            return run_variant(ctx, variant_key(backward, own), own, layouts, arrived)
        is_full = is_known_full(tangents, backward)
        key = backward.full if is_full else variant_key(backward, tangents)
        is_usual = key is backward.full and backward.runs_whole and ctx.kept is None and not is_watched_or_transformed()
        is_usual = is_usual and (is_full or not are_of_other_kinds(tangents))
        results = run_whole(ctx, backward, tangents, layouts) if is_usual else run_variant(ctx, key, tangents, layouts)
        return keep_gradients(ctx, results) if backward.reuses_memory else results


def run_variant(
    ctx: Any,
    key: VariantKey,
    tangents: Sequence[torch.Tensor | None],
    layouts: Sequence[SizeAndStride],
    arrived: Gradients = (),
) -> tuple[Any, ...]:
    """The gradients of a node, in whatever mode the backward runs. `arrived`: the gradients of its stand-ins."""
    backward: Backward = ctx.backward
    check_saving(ctx, key)
    if any(tangent is not None for tangent in arrived):
        return run_with_inner_gradients(ctx, key, tangents, arrived)
    if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
        backward.find_nan(key, [*ctx.sizes, *unpack(ctx, key), *backward.memory_inputs(ctx.memory)], tangents, layouts)
    creates_graph = torch.is_grad_enabled()
    is_higher_order = creates_graph or (ctx.of_dual_numbers and torch_compat.forward_mode_is_open())
    if is_higher_order and (ctx.recomputation is not None or backward.saved_needed(key) != () or ctx.memory):
        inner = InnerGradients(stand_ins_of(ctx)) if ctx.stand_ins else NO_INNER_GRADIENTS
        with contextlib.nullcontext() if creates_graph else torch.enable_grad():
            call, saved = recomputation_of(ctx), saved_values(ctx, key)
            results = backward.derivative(ctx, call, saved, tangents, key.gradients, inner)
        release(ctx, key)
        return results if creates_graph else tuple(map(detached, results))
    if (
        creates_graph
        or torch_compat.any_autocast_enabled()
        or torch_compat.is_transformed(tangents)
        or are_of_other_kinds(tangents)
    ):
        values = [*ctx.sizes, *unpack_and_release(ctx, key), *backward.memory_inputs(ctx.memory)]
        return backward.finish(key, backward.run_transformed(key, values, tangents, layouts), ctx.memory, tangents)
    variant = backward.variants.get(key)
    values = [*ctx.sizes, *unpack_and_release(ctx, key), *backward.memory_inputs(ctx.memory)]
    ready = map(with_traced_layout, tangents, layouts)
    values += ready if variant.undefined is None else backward.fill_undefined(list(ready), layouts)
    with torch_compat.below_autograd():
        gradients = variant(values)
    return backward.finish(key, gradients, ctx.memory, tangents)


def run_with_inner_gradients(
    ctx: Any, key: VariantKey, tangents: Gradients, arrived: Gradients
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of a node, for gradients of inner values, and of its results if there are any."""
    backward: Backward = ctx.backward
    call = recomputation_of(ctx)
    saved = saved_at(backward.saved_slots, unpack_unchanged(ctx, range(len(backward.saved_slots))))
    inner = InnerGradients(stand_ins_of(ctx) if torch.is_grad_enabled() else (), arrived)
    gradients = backward.higher_order(call, saved, tangents, key.gradients, inner)
    if any(key.tangents):
        release(ctx, key)
    else:
        keep_all(ctx)
    return (*backward.no_gradients, *gradients)


def stand_ins_of(ctx: Any) -> tuple[torch.Tensor, ...]:
    """The stand-ins of a node, with their history; none if an earlier backward has freed them."""
    if not ctx.stand_ins or ctx.kept is not None:
        return ()
    try:
        return ctx.saved_tensors[len(ctx.backward.saved_slots) :]  # outputs of the node are not unpacked alone
    except RuntimeError:  # freed, or another saved tensor was changed in place
        return ()


def are_of_other_kinds(tangents: Sequence[torch.Tensor | None]) -> bool:
    """Whether a tangent is sparse or a wrapper subclass, whose ops a compiled graph does not run."""
    for tangent in tangents:
        if tangent is None or (type(tangent) is Tensor and tangent.layout is STRIDED):
            continue
        if tangent.layout is not STRIDED or torch_compat.is_wrapper_subclass(tangent):
            return True
    return False


def is_watched_or_transformed() -> bool:
    """Whether a backward differs from the graph that was compiled for it, or does more."""
    return (
        torch.is_grad_enabled()
        or torch_compat.any_autocast_enabled()
        or torch.is_anomaly_enabled()
        or torch_compat.transform_is_open()
        or torch_compat.forward_mode_is_open()
    )


def run_whole(ctx: Any, backward: Backward, tangents: Sequence[Any], layouts: Sequence[SizeAndStride]) -> tuple[Any, ...]:
    """The first backward of a node with all tangents and gradients: the usual case, in which each Python call counts."""
    values = [*ctx.sizes, *ctx.saved_tensors] if backward.saves else [*ctx.sizes]
    is_last = not torch_compat.graph_is_retained()
    run = backward.variants.whole_for(values, is_last)
    if is_last:
        release_all(ctx)
    values += map(with_traced_layout, tangents, layouts)
    return backward.node_results(backward.below_autograd(run, values))


DEFAULTS: dict[str, Any] = {"sizes": (), "layouts": None, "memory": (), "watched": (), "ran": frozenset(), "kept": None}
torch_compat.set_defaults(Segment, **DEFAULTS, of_dual_numbers=False, wanted=(), stand_ins=0, is_differentiated=False)


def mark_as_dual(result: torch.Tensor) -> None:
    """Mark the nodes of a result that a call with dual numbers returned.

    As long as the forward-mode level is open, their saved values are dual in eager, and so are their gradients. They are
    then computed as gradients of gradients are: from the inputs.
    """
    for node in nodes_of_call([result]):
        node.of_dual_numbers = True


def watch_saved(results: Sequence[Any], guards: Mapping[int, torch.Tensor], saved: Mapping[Saved, Collection[int]]) -> None:
    """Let further tensors guard what the nodes of a call have saved: a change of one is a change of the result.

    Args:
        results: those of the call.
        guards: such tensors, by the position of the result.
        saved: the results that share the memory of a saved tensor, by its slot.
    """
    for node in nodes_of_call(results):
        slots = node.backward.saved_slots
        found = {k: [guards[r] for r in saved.get(slot, ()) if r in guards] for k, slot in enumerate(slots)}
        if any(found.values()):
            kept = KeptTensor.all_of(node, list(found))
            node.kept = {k: functools.reduce(KeptTensor.watching, found[k], each) for k, each in kept.items()}


def nodes_of_call(results: Sequence[Any]) -> Iterator[Any]:
    """The nodes of the segments of a call, from its results."""
    roots = (first_segment(result.grad_fn) for result in results if isinstance(result, torch.Tensor))

    def segments_behind(node: Any) -> Iterable[Any]:
        return (behind for behind in torch_compat.next_nodes(node) if is_segment(behind) and is_same_call(behind, node))

    return nodes_reached(roots, segments_behind)


def is_same_call(one: Any, other: Any) -> bool:
    return one.recomputation is other.recomputation


def first_segment(node: Any) -> Any:
    """The node of a result, which may be a view; `None` if it has none."""
    while node is not None and not is_segment(node):
        node = node.next_functions[0][0] if node.next_functions else None
    return node


def is_segment(node: Any) -> bool:
    return torch_compat.is_node_of(node, Segment)


class History(torch.autograd.Function):
    """A stand-in for a tensor before a change in place: its gradient is that of the tensor as it was."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return stand_in(tensor.size(), tensor.dtype, tensor.device)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        return gradient


def recomputation_of(ctx: Any) -> Recomputation:
    """The inputs of gradients of gradients.

    Raises:
        RuntimeError: eager's, if an earlier backward freed them.
    """
    if ctx.recomputation is None:
        ctx.saved_tensors  # noqa: B018  (freed: raises eager's message)
    return cast(Recomputation, ctx.recomputation)


def check_saving(ctx: Any, key: VariantKey) -> None:
    """Check that no node of eager's that runs needs a value that changed: in the call itself, or watched memory since.

    Raises:
        RuntimeError: as eager's.
    """
    ctx.backward.check_overwritten(key)
    run = ctx.backward.nodes_run(key) if ctx.watched else 0
    for tensor, version, nodes in ctx.watched:
        if nodes & run:
            check_version(tensor, version)


def detached(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient without its history, but with its forward-mode tangent."""
    if gradient is None:
        return None
    dual = torch_compat.unpack_dual(gradient)
    tangent = None if dual.tangent is None else dual.tangent.detach()
    return torch_compat.pack_dual(torch_compat.Dual(dual.primal.detach(), tangent), None)


def stand_in(size: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """A tensor with the memory of one element, whose gradient has the given type."""
    return torch.empty_strided(size, (0,) * len(size), dtype=dtype, device=device)


def is_known_full(tangents: Sequence[torch.Tensor | None], backward: Backward) -> bool:
    """Whether every tangent is defined and every gradient wanted, if that is fast to find out; see `variant_key`."""
    for tangent in tangents:
        if type(tangent) is not Tensor or tangent.layout is not STRIDED:
            return False
    return torch_compat.is_wanted(SENTINEL_NODE) if backward.has_sentinel else backward.all_executed()


def variant_key(backward: Backward, tangents: Sequence[torch.Tensor | None]) -> VariantKey:
    """The key of the running node."""
    wanted = wanted_gradients(backward, torch_compat.edges_of_running_node())
    return backward.key_of([tangent is not None for tangent in tangents], wanted)


def wanted_gradients(backward: Backward, edges: Sequence[Any]) -> tuple[bool, ...]:
    """The gradients to compute, for a node with these edges in the running backward."""
    if backward.has_sentinel and torch_compat.is_wanted(SENTINEL_NODE):
        return backward.full.gradients
    return backward.wanted_gradients(edges[backward.has_sentinel :])


# -- compiled autograd


class UninlinedSegment(Segment):
    """A segment whose backward runs outside of the graph of compiled autograd: Dynamo breaks the graph there."""

    @staticmethod
    @torch_compat.disable_dynamo
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        if torch_compat.recorded_node(ctx) is None:
            return Segment.backward(ctx, *tangents)
        count = len(tangents) - ctx.stand_ins
        own, layouts = tangents[:count], ctx.layouts or ctx.backward.layouts
        key = ctx.backward.key_of([tangent is not None for tangent in own], ctx.wanted)
        return run_variant(ctx, key, own, layouts, tangents[count:])


def hand_over(ctx: Any) -> type[torch.autograd.Function]:
    """What a node becomes in a backward that compiled autograd runs: usually a copy of its graph.

    The backward stays a call if it creates a graph, has dual numbers, or reads or changes memory that it has not saved.
    """
    backward: Backward = ctx.backward
    wanted = ctx.wanted = wanted_gradients(backward, torch_compat.next_nodes(ctx))
    is_higher_order = torch.is_grad_enabled() or (ctx.of_dual_numbers and torch_compat.forward_mode_is_open())
    if is_higher_order or bool in map(type, ctx.sizes) or ctx.memory or ctx.watched or ctx.stand_ins:
        return UninlinedSegment
    for each in (ctx.kept or {}).values():
        each.unpack()  # raises if it was changed
    keep_saved_symbolic(ctx)
    if wanted not in backward.inlined:
        backward.inlined[wanted] = function_with_graph(InlinedBackward(backward, wanted))
    if backward.saves and not torch_compat.graph_is_retained():
        ctx.recomputation = None  # torch frees what the node saved
    return backward.inlined[wanted]


def whole_numbers_of(ctx: Any) -> list[int]:
    """The symbolic sizes of a node, and two ints for each float: compiled autograd takes no other numbers."""
    pairs = (halves_of_float(size) if isinstance(size, float) else (size,) for size in ctx.sizes)
    return list(itertools.chain.from_iterable(pairs))


def keep_saved_symbolic(ctx: Any) -> None:
    """Let the sizes of saved tensors be symbolic in the graph of compiled autograd, as those of the node are."""
    saved = torch_compat.saved_tensors_without_hooks(ctx) if ctx.sizes and ctx.kept is None else None
    if saved is not None:
        torch_compat.keep_symbolic(saved, ctx.backward.symbolic_dims_of_saved)


def function_with_graph(node: InlinedBackward) -> type[torch.autograd.Function]:
    does_more = node.backward.changes or node.backward.variants.facts.has_cases
    can_inline = torch_compat.can_inline() and node.knows_layouts and node.takes_its_floats and not does_more
    return torch_compat.inlined(Segment, node) if can_inline else UninlinedSegment


torch_compat.compile_nodes_of(Segment, hand_over, whole_numbers_of)
