"""Cuts the autograd graph of a traced function into segments: each becomes one autograd node at run time.

In: the edges at which gradients enter (results) and leave (inputs). Out: a `Segmentation`.

    h = tanh(x); return h.sin(), h.cos()
    autograd nodes    Cos: reached from result 1    Sin: from result 0    Tanh: from both
    segments          0: Cos                        1: Sin                2: Tanh
    cut               the edge into Tanh: segments 0 and 1 pass gradients to it, the engine sums them

Nodes that the same results reach run in the same backwards, so they are one segment. A gradient passes from one segment to
another through a result of the function, if its edge is one, or else through a `SegmentBoundary`, which is invisible
outside. This is eager's graph, only coarser: it allows the same sequences of backwards, adds gradients in the same order,
and visits the same nodes twice.

A returned view that is made outside of the graph (`ExternalView`) is no result of it, but gradients leave there, too: the
autograd nodes of the view pass them on to its base. The same holds for an input whose size or strides the call changes.

A node that saved a value which the function then overwrote raises in a backward (`Failure`). Nothing is computed behind it:
its segment has undefined gradients for the targets behind it, and raises if one of them is wanted.

The graph is cut during the trace (`CutBackward`), so that each op is in the FX graph of its node's segment.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.joint.chunks import Item, chunks_of_equal_length, chunks_of_equal_weight
from aotgrad.joint.joins import NO_JOINS, Edge, Joins
from aotgrad.slots import (
    ForwardResult,
    Gradient,
    GradientTarget,
    OldInput,
    Primal,
    ReturnedView,
    ReturnedWrapper,
    SegmentBoundary,
    UpdatedInput,
    place_of,
)
from aotgrad.subclasses.passages import TracedView, gradient_parts

"""An autograd node and the position of one of its inputs, where a gradient arrives.

If other results were computed from a wrapper subclass that is a result, their gradients pass through it outside. So the edge
of the node that takes the wrapper apart is another one, with the node as a third item.
"""

MOST_SEGMENTS = 16
"""The most chunks of a backward whose gradients are awaited."""

Chunks = int | Mapping[Primal, int]
"""The number of chunks of equal length; or the bytes of each gradient, for chunks of about equal bytes."""

NOTHING_FAILS: Mapping[Any, str] = {}

ALL_RESULTS = -1
"""The bit mask of all results."""


@dataclass(frozen=True)
class Cuts:
    """Where a backward is cut into segments.

    Attributes:
        grad_segments: the number of consecutive segments; see `Options`.
        joins_results: results share a segment, unless one was computed from the other. This is the case for the results of a
            derivative: a backward usually has gradients for all of them.
        is_whole: the backward is one segment, whatever its results.
    """

    grad_segments: int | str = 1
    joins_results: bool = False
    is_whole: bool = False


UNCUT, WHOLE = Cuts(), Cuts(is_whole=True)


@dataclass(frozen=True)
class ExternalView:
    """A view that is made outside of the graph: a returned one, or an input that the call changes.

    Gradients leave at `edge`. They may return at `bases`, where gradients of results enter. A wrapper subclass among the
    results is such a view of its parts, and `taker` is the node that takes it apart.
    """

    slot: ReturnedView | ReturnedWrapper | UpdatedInput | OldInput
    edge: Edge
    bases: tuple[Edge, ...]
    taker: Any = None


def taken_apart(slot: ReturnedWrapper, taker: Any, bases: Sequence[Edge]) -> ExternalView:
    """A wrapper subclass among the results; from now on the node that takes it apart has an edge of its own."""
    if isinstance(taker, TracedView):
        return ExternalView(slot, taker.edge, tuple(bases), taker)
    edge = taker.next_functions[0]
    taker.takes_own_edge = True
    return ExternalView(slot, edge, tuple(bases), taker)


@dataclass(frozen=True)
class Failure:
    """The error that an autograd node raises in a backward, and the targets behind the node."""

    message: str
    targets: frozenset[GradientTarget]


@dataclass(frozen=True)
class Segmentation:
    """The segment of each autograd node, numbered so that gradients flow to higher numbers, and the meaning of edges.

    `targets` are the edges through which a gradient may leave a segment. `materialized` are segments of one node that gets
    zeros for undefined gradients if another one is defined. `alone` are the nodes that change tensors in place, in groups
    that are one segment each; `effects` are their positions by age. `failures` are the nodes that raise. `deciding` are the
    nodes of custom functions whose computation depends on which gradients arrive; each is a segment. `takers` are the nodes
    that take apart the wrapper subclasses that gradients pass through.
    """

    segment_of: Mapping[Any, int]
    targets: Mapping[Edge, GradientTarget]
    count: int
    materialized: frozenset[int]
    external_views: frozenset[Edge] = frozenset()
    alone: frozenset[Any] = frozenset()
    effects: tuple[frozenset[int], ...] = ()
    failures: Mapping[Any, Failure] = field(default_factory=dict)
    deciding: frozenset[Any] = frozenset()
    takers: Mapping[GradientTarget, Any] = field(default_factory=dict)

    def renumber(self, number: Mapping[int, int]) -> Segmentation:
        """The segmentation with new numbers, without segments that have none."""
        segment_of = {node: number[segment] for node, segment in self.segment_of.items() if segment in number}
        return replace(
            self,
            segment_of=segment_of,
            count=len(number),
            materialized=frozenset(number[segment] for segment in self.materialized if segment in number),
            alone=self.alone & segment_of.keys(),
            failures={node: failure for node, failure in self.failures.items() if node in segment_of},
            deciding=self.deciding & segment_of.keys(),
        )

    def leaves(self, segment: int, edge: Edge) -> bool:
        """Whether a gradient that a node of `segment` passes to `edge` leaves the segment.

        At an edge of an input it does, even if the segment contains the node of the edge.
        """
        if self.segment_of.get(edge[0]) != segment or edge in self.external_views:
            return True
        return isinstance(self.targets.get(edge), Primal)


def find_segments(
    results: Mapping[ForwardResult, Edge],
    inputs: Mapping[Edge, Primal],
    chunks: Chunks,
    external_views: Sequence[ExternalView] = (),
    failing: Mapping[Any, str] = NOTHING_FAILS,
    effects: Collection[frozenset[int]] = (),
    joins_results: bool = False,
) -> Segmentation | None:
    """The segments of the graph between results and inputs, or `None` if a result is an input: then nothing can be cut.

    Args:
        results: where the gradient of each result enters.
        inputs: where the gradients of inputs arrive.
        chunks: how to cut the work further, into segments that follow one another.
        external_views: where gradients leave the graph and may return; one that no result depends on changes nothing.
        failing: the nodes that raise, and their messages.
        effects: the nodes that change tensors in place; see `positions_of`.
        joins_results: see `Cuts`.
    """
    roots = list(results.values())
    if any(root in inputs for root in roots):
        return None
    external_view_at = external_views_by_edge(external_views, inputs)
    successors = visited_nodes([node for node, _ in roots], inputs, external_view_at, failing)
    order = topological_order(successors, successors.__getitem__, lambda node: -torch_compat.node_sequence_nr(node))
    reached = dependence(order, successors, [node for node, _ in roots])
    chunk = chunks_of(order, successors, inputs, chunks)
    zeroed = nodes_that_get_zeros(order, reached, roots)
    groups = [closure_of_group(group, order, successors) for group in nodes_at(effects, successors)]
    group_of = one_group_each(zeroed, groups, sources_of_nodes(order, successors, roots))
    level = levels(*condense(order, successors, group_of), set(group_of.values()))
    level_of = {node: level[group_of.get(node, node)] for node in order}
    behind = dependence(order, successors, [node for group in nodes_at(effects, successors) for node in group])
    apart = mask_of_inner_results(successors, roots) if joins_results else ALL_RESULTS
    keys: dict[Any, Any] = {node: (reached[node] & apart, chunk[node], level_of[node], behind[node], None) for node in order}
    keys.update({node: (0, 0, 0, 0, group) for node, group in group_of.items()})
    segment_of = numbered(keys, successors)
    count = len(set(segment_of.values()))
    targets = targets_of([node for node in order if node not in failing], segment_of, results, inputs, external_view_at)
    custom = (node for group in groups if len(group) == 1 for node in group if torch_compat.is_custom_node(node))
    deciding = frozenset(filter(torch_compat.keeps_undefined, zeroed))
    materialized = frozenset(segment_of[node] for node in (*zeroed, *custom) if node not in deciding)
    failures = failures_of(order, failing, {**ends_at(results, external_view_at), **inputs}) if failing else {}
    left = frozenset(external_view_at.keys() & targets.keys())
    alone = frozenset().union(*groups)
    takers: dict[GradientTarget, Any] = {external_view_at[edge].slot: external_view_at[edge].taker for edge in left}
    return Segmentation(segment_of, targets, count, materialized, left, alone, tuple(effects), failures, deciding, takers)


def mask_of_inner_results(successors: Mapping[Any, Sequence[Any]], roots: Sequence[Edge]) -> int:
    """The results that other results were computed from, as a bit mask: they receive gradients from these other results."""
    entered = set(itertools.chain.from_iterable(successors.values()))
    return sum(1 << k for k, (node, *_) in enumerate(roots) if node in entered)


def closure_of_group(group: Collection[Any], order: Sequence[Any], successors: Mapping[Any, Sequence[Any]]) -> set[Any]:
    """The nodes of a group, and those on paths between them."""
    if len(group) == 1:
        return set(group)
    behind, before = set(group), set(group)
    for node in order:
        if node in behind:
            behind.update(successors[node])
    for node in reversed(order):
        if not before.isdisjoint(successors[node]):
            before.add(node)
    return behind & before


def sources_of_nodes(
    order: Sequence[Any], successors: Mapping[Any, Sequence[Any]], roots: Sequence[Edge]
) -> dict[Any, set[Any]]:
    """The sources of each node's gradients: other nodes, or `None` for outside."""
    sources: dict[Any, set[Any]] = {node: set() for node in order}
    for node, _ in roots:
        sources[node].add(None)
    for node in order:
        for successor in successors[node]:
            sources[successor].add(node)
    return sources


def one_group_each(zeroed: set[Any], groups: Sequence[Collection[Any]], sources: Mapping[Any, set[Any]]) -> dict[Any, Any]:
    """For each node that needs a segment of its own or of its group, one node of the group.

    A node of `zeroed` may be in a group if gradients from outside arrive only there.

    Raises:
        CaptureError: a node would be in two groups.
    """
    found: dict[Any, Any] = {}
    for group in groups:
        first = min(group, key=torch_compat.node_sequence_nr)
        entries = [node for node in group if not sources[node].issubset(group)]
        if any(node in found for node in group) or (not zeroed.isdisjoint(group) and len(entries) > 1):
            raise CaptureError(
                "a region of torch.utils.checkpoint changes a tensor in place or draws random numbers when it is rerun in "
                "the backward, and has an autograd function in it with several results, or another such region; "
                "checkpoint outside of the compiled function"
            )
        found.update(dict.fromkeys(group, first))
    return {**{node: node for node in zeroed}, **found}


def condense(
    order: Sequence[Any], successors: Mapping[Any, Sequence[Any]], group_of: Mapping[Any, Any]
) -> tuple[list[Any], dict[Any, list[Any]]]:
    """The graph with one item for each group, in topological order."""
    onward: dict[Any, dict[Any, None]] = {}
    for node in order:
        item = group_of.get(node, node)
        found = onward.setdefault(item, {})
        found.update((other, None) for other in (group_of.get(n, n) for n in successors[node]) if other is not item)
    lists = {item: list(found) for item, found in onward.items()}
    position = {item: k for k, item in enumerate(lists)}
    return topological_order(lists, lists.__getitem__, position.__getitem__), lists


def external_views_by_edge(
    external_views: Sequence[ExternalView], inputs: Mapping[Edge, Primal]
) -> dict[Edge, ExternalView]:
    return {view.edge: view for view in external_views if view.edge not in inputs}


def positions_of(
    group_of: Callable[[Any], Any],
    results: Mapping[ForwardResult, Edge],
    inputs: Mapping[Edge, Primal],
    external_views: Sequence[ExternalView],
    failing: Collection[Any],
) -> tuple[frozenset[int], ...]:
    """The nodes of each group, by position in the age order of all nodes; every run of the function has the same."""
    found = visited_nodes(
        [node for node, _ in results.values()], inputs, external_views_by_edge(external_views, inputs), failing
    )
    groups: dict[Any, set[int]] = {}
    for k, node in enumerate(sorted(found, key=torch_compat.node_sequence_nr)):
        if (group := group_of(node)) is not None:
            groups.setdefault(group, set()).add(k)
    return tuple(map(frozenset, groups.values()))


def nodes_at(groups: Collection[Collection[int]], nodes: Collection[Any]) -> list[list[Any]]:
    """The nodes that `positions_of` has found."""
    by_age = sorted(nodes, key=torch_compat.node_sequence_nr) if groups else []
    return [[by_age[position] for position in group] for group in groups]


def single_segment(
    results: Mapping[ForwardResult, Edge], inputs: Mapping[Edge, Primal], failing: Mapping[Any, str] = NOTHING_FAILS
) -> Segmentation:
    """Everything in one segment."""
    successors = visited_nodes([node for node, _ in results.values()], inputs, {}, failing)
    failures = failures_of(successors, failing, inputs)
    return Segmentation(dict.fromkeys(successors, 0), inputs, 1, frozenset(), failures=failures)


def ends_at(
    results: Mapping[ForwardResult, Edge], external_views: Mapping[Edge, ExternalView]
) -> dict[Edge, GradientTarget]:
    """The edges of results and views; the first result wins for an edge of several."""
    views: dict[Edge, GradientTarget] = {edge: view.slot for edge, view in external_views.items()}
    views.update((edge, result) for result, edge in reversed(list(results.items())))
    return views


def failures_of(nodes: Iterable[Any], failing: Mapping[Any, str], ends: Mapping[Edge, GradientTarget]) -> dict[Any, Failure]:
    """The failing nodes among `nodes`, in the engine's order."""
    found = sorted((node for node in nodes if node in failing), key=lambda node: -torch_compat.node_sequence_nr(node))
    return {node: Failure(failing[node], frozenset(targets_behind(node, ends))) for node in found}


def targets_behind(root: Any, ends: Mapping[Edge, GradientTarget]) -> Iterator[GradientTarget]:
    """The first targets on each path from an autograd node."""
    seen, stack = {root}, [root]
    while stack:
        for edge in edges_of(stack.pop()):
            if edge in ends:
                yield ends[edge]
            elif edge[0] not in seen:
                seen.add(edge[0])
                stack.append(edge[0])


def nodes_that_get_zeros(order: Sequence[Any], reached: Mapping[Any, int], roots: Sequence[Edge]) -> set[Any]:
    """Nodes of custom functions with outputs that a backward may use in part: the others get zeros or `None`."""
    arriving: dict[Any, dict[int, int]] = {}
    for k, (node, position) in enumerate(roots):
        masks = arriving.setdefault(node, {})
        masks[position] = masks.get(position, 0) | 1 << k
    for node in order:
        for successor, position, *_ in edges_of(node):
            masks = arriving.setdefault(successor, {})
            masks[position] = masks.get(position, 0) | reached[node]
    custom = (node for node in order if torch_compat.gets_zeros(node))
    return {node for node in custom if len(set(arriving[node].values())) > 1}


def chunks_of(
    order: Sequence[Any], successors: Mapping[Any, Sequence[Any]], inputs: Mapping[Edge, Primal], chunks: Chunks
) -> dict[Any, int]:
    """The chunk of each node."""
    if isinstance(chunks, int):
        return chunks_of_equal_length(order, chunks)
    weights = {node: sum(chunks[inputs[edge]] for edge in edges_of(node) if edge in inputs) for node in order}
    return chunks_of_equal_weight(order, successors, weights, MOST_SEGMENTS)


def edges_of(node: Any) -> list[Edge]:
    """The edges along which a node passes gradients on."""
    return [edge for edge in all_edges_of(node) if edge[0] is not None]


def all_edges_of(node: Any) -> list[Edge]:
    """An edge for each input of a node, also for those without a gradient."""
    own = (node,) if getattr(node, "takes_own_edge", False) else ()
    return [(*edge, *own) for edge in node.next_functions]


def visited_nodes(
    roots: Iterable[Any],
    inputs: Mapping[Edge, Primal],
    external_views: Mapping[Edge, ExternalView],
    failing: Collection[Any] = (),
) -> dict[Any, list[Any]]:
    """The nodes that a backward from `roots` visits before it reaches `inputs`, each with its successors.

    Nodes outside, on `external_views`, and nodes behind a failing node are left out.
    """
    successors: dict[Any, list[Any]] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in successors:
            left = () if node in failing else edges_of(node)
            edges = [
                onward for edge in left for onward in (external_views[edge].bases if edge in external_views else (edge,))
            ]
            successors[node] = [edge[0] for edge in edges if edge not in inputs]
            stack.extend(successors[node])
    return successors


def ends_without_inputs(segmentation: Segmentation) -> list[GradientEdge]:
    """The edges of results and views without an input behind them: a backward to the inputs would skip them."""
    entered = {node for (node, *_), target in segmentation.targets.items() if isinstance(target, Primal)}
    visible = (edge for edge, target in segmentation.targets.items() if not isinstance(target, (Primal, SegmentBoundary)))
    return [GradientEdge(*edge) for edge in visible if not leads_to(edge[0], entered)]


def leads_to(root: Any, ends: Collection[Any]) -> bool:
    """Whether a backward from an autograd node can reach one of `ends`."""
    seen, stack = {root}, [root]
    while stack:
        node = stack.pop()
        if node in ends:
            return True
        onward = [successor for successor, *_ in edges_of(node) if successor not in seen]
        seen.update(onward)
        stack.extend(onward)
    return False


def targets_of(
    order: Sequence[Any],
    segment_of: Mapping[Any, int],
    results: Mapping[ForwardResult, Edge],
    inputs: Mapping[Edge, Primal],
    external_views: Mapping[Edge, ExternalView],
) -> dict[Edge, GradientTarget]:
    """The meaning of each edge at which a gradient enters another segment, an input or a view."""
    targets: dict[Edge, GradientTarget] = {**inputs}
    for result, edge in results.items():
        targets.setdefault(edge, result)
    cuts = 0
    for node in order:
        for edge in edges_of(node):
            if edge in external_views:
                targets.setdefault(edge, external_views[edge].slot)
            elif edge not in targets and segment_of[edge[0]] != segment_of[node]:
                targets[edge] = SegmentBoundary(cuts)
                cuts += 1
    return targets


# --- Algorithms ------------------------------------------------------------------------------------------------------


def topological_order(
    items: Iterable[Item], successors: Callable[[Item], Iterable[Item]], priority: Callable[[Item], Any]
) -> list[Item]:
    """Each item after its predecessors; among ready items, the lowest priority first (Kahn, 1962)."""
    items = list(items)
    waiting = dict.fromkeys(items, 0)
    for item in items:
        for successor in successors(item):
            waiting[successor] += 1
    ready = [(priority(item), k, item) for k, item in enumerate(items) if not waiting[item]]
    heapq.heapify(ready)
    position = {item: k for k, item in enumerate(items)}
    order = []
    while ready:
        _, _, item = heapq.heappop(ready)
        order.append(item)
        for successor in successors(item):
            waiting[successor] -= 1
            if not waiting[successor]:
                heapq.heappush(ready, (priority(successor), position[successor], successor))
    return order


def dependence(order: Sequence[Item], successors: Mapping[Item, Sequence[Item]], roots: Sequence[Item]) -> dict[Item, int]:
    """For each item, the set of roots that lead to it, as a bit mask. `order` is topological."""
    masks = dict.fromkeys(order, 0)
    for k, root in enumerate(roots):
        masks[root] |= 1 << k
    for item in order:
        for successor in successors[item]:
            masks[successor] |= masks[item]
    return masks


def levels(order: Sequence[Item], successors: Mapping[Item, Sequence[Item]], alone: set[Item]) -> dict[Item, int]:
    """The most steps into and out of items of `alone` on a path to each item. `order` is topological."""
    level = dict.fromkeys(order, 0)
    for item in order:
        for successor in successors[item]:
            step = (item in alone) + (successor in alone)
            level[successor] = max(level[successor], level[item] + step)
    return level


def numbered(keys: Mapping[Item, Any], successors: Mapping[Item, Sequence[Item]]) -> dict[Item, int]:
    """Items with the same key get the same number; numbers rise along the edges between different keys."""
    first: dict[Any, int] = {}
    following: dict[Any, set[Any]] = {}
    for k, (item, key) in enumerate(keys.items()):
        first.setdefault(key, k)
        following.setdefault(key, set()).update(keys[other] for other in successors[item] if keys[other] != key)
    order = topological_order(first, following.__getitem__, first.__getitem__)
    number = {key: k for k, key in enumerate(order)}
    return {item: number[key] for item, key in keys.items()}


def engine_order(count: int) -> list[int]:
    """The order in which the engine's queue returns `count` tasks of equal priority, as positions in insertion order.

    The queue is a binary heap, as in libstdc++: the first task comes out first, and later ties ignore age.
    """
    heap, order = list(range(count)), []
    while heap:
        order.append(heap[0])
        last = heap.pop()
        if heap:
            sift_in(heap, last)
    return order


def sift_in(heap: list[int], last: int) -> None:
    """Remove the root of a heap of equals: the hole moves down, to the right, and `last` fills it there."""
    hole = 0
    while 2 * hole + 2 < len(heap):
        heap[hole] = heap[2 * hole + 2]
        hole = 2 * hole + 2
    if 2 * hole + 1 < len(heap):
        heap[hole] = heap[2 * hole + 1]
        hole = 2 * hole + 1
    heap[hole] = last


def order_for_engine(items: Sequence[Item], after: int) -> list[Item]:
    """The insertion order, after `after` others (0 or 1), for which the engine's queue returns `items` in their order."""
    places: list[Any] = [None] * len(items)
    for item, place in zip(items, engine_order(len(items) + after)[after:], strict=True):
        places[place - after] = item
    return places


# --- Cutting ---------------------------------------------------------------------------------------------------------


@dataclass
class CutBackward:
    """Separates the segments of a running backward: gradients that leave a segment are collected, not passed on.

    `enter(cut, gradient)` is called when the first gradient arrives at a cut, and replaces the gradient. `left` are the
    primals whose gradient leaves each segment, in the order of completion.
    """

    segments: Segmentation
    enter: Callable[[SegmentBoundary, torch.Tensor], torch.Tensor | None]
    collected: dict[tuple[int, GradientTarget], list[torch.Tensor]] = field(default_factory=dict)
    entered: set[SegmentBoundary] = field(default_factory=set)
    left: dict[tuple[int, Primal], None] = field(default_factory=dict)
    joins: Joins = NO_JOINS

    def __enter__(self) -> CutBackward:
        self.handles = [node.register_hook(self.hook(node)) for node in self.segments.segment_of]
        return self

    def __exit__(self, *_: Any) -> None:
        for handle in self.handles:
            handle.remove()

    def hook(self, node: Any) -> Callable[[Any, Any], tuple]:
        edges, segment = all_edges_of(node), self.segments.segment_of[node]

        def replace(gradients: Sequence[torch.Tensor | None], _: Any) -> tuple:
            self.note_order(segment, [self.segments.targets.get(edge) for edge in edges])
            return tuple(self.pass_on(segment, edge, g) for edge, g in zip(edges, gradients, strict=True))

        return replace

    def note_order(self, segment: int, targets: Sequence[GradientTarget | None]) -> None:
        """Note the order of the last gradients of inputs, which the engine puts into its queue together."""
        primals = [each for target in targets if isinstance(target, Primal) for each in self.joins.primals_of(target)]
        for position in engine_order(len(primals)):
            self.left.pop((segment, primals[position]), None)
            self.left[segment, primals[position]] = None

    def pass_on(self, segment: int, edge: Edge, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """The replacement of a gradient that a node of `segment` passes to `edge`."""
        if gradient is None or edge[0] is None or not self.segments.leaves(segment, edge):
            return gradient
        target = self.segments.targets[edge]
        if isinstance(target, Primal):
            for primal, part in self.joins.ends_of(target, gradient):
                self.collected.setdefault((segment, primal), []).append(part)
            return zeros_for_function(edge[0], gradient)
        if isinstance(target, SegmentBoundary) and torch_compat.is_wrapper_subclass(gradient):
            target = SegmentBoundary(target.index, segment, term=self.wrappers_at(segment, target))
        self.collected.setdefault((segment, target), []).append(gradient)
        if not isinstance(target, SegmentBoundary) or target in self.entered:
            return None
        self.entered.add(target)
        return self.enter(target, gradient)

    def wrappers_at(self, segment: int, cut: SegmentBoundary) -> int:
        """How many wrapper subclasses a segment has passed on at a cut."""
        found = (target for number, target in self.collected if number == segment and isinstance(target, SegmentBoundary))
        return sum(target.is_part and place_of(target) == cut for target in found)

    def terms(self) -> dict[Gradient, torch.Tensor]:
        """The gradients that each segment passes on. Wrapper subclasses pass in parts.

        The first terms of a sum are added here. Later ones are passed on one by one, since the engine continues the sum and
        floating-point sums depend on the order.
        """
        found: dict[Gradient, torch.Tensor] = {}
        begun: set[GradientTarget] = set()
        for (segment, target), terms in self.collected.items():
            first = target not in begun and isinstance(target, (Primal, SegmentBoundary))
            begun.add(target)
            values = [functools.reduce(torch.add, terms)] if first else terms
            for term, value in enumerate(values):
                found.update({Gradient(to, segment, term): part for to, part in passed_on(target, value)})
        return found


def zeros_for_function(node: Any, gradient: torch.Tensor) -> torch.Tensor | None:
    """Zeros in place of an undefined gradient of a wrapper, for a custom function: autograd would make plain zeros."""
    needs_zeros = torch_compat.is_custom_node(node) and torch_compat.is_wrapper_subclass(gradient)
    return torch.zeros_like(gradient) if needs_zeros and not torch_compat.keeps_undefined(node) else None


def passed_on(target: GradientTarget, gradient: torch.Tensor) -> Iterator[tuple[GradientTarget, torch.Tensor]]:
    """A gradient with its target, or those of its parts."""
    if isinstance(target, ReturnedWrapper) or (isinstance(target, SegmentBoundary) and target.is_part):
        yield from ((replace(target, part=k), part) for k, part in gradient_parts(gradient).items())
    else:
        yield target, gradient
