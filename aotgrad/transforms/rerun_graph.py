"""The autograd graph of a second run of a function, and the gradients through it, one segment at a time."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from aotgrad import torch_compat
from aotgrad.errors import HigherOrderError
from aotgrad.ir import TensorInput
from aotgrad.joint.attribution import differentiated_as_in_eager
from aotgrad.joint.backward import cut_into
from aotgrad.joint.failures import failing_nodes, passed_over
from aotgrad.joint.joins import Joins
from aotgrad.joint.segments import CutBackward, ExternalView, Segmentation, find_segments, taken_apart
from aotgrad.slots import (
    ForwardResult,
    Gradient,
    GradientTarget,
    Primal,
    ReturnedView,
    ReturnedWrapper,
    SegmentBoundary,
    place_of,
)
from aotgrad.subclasses.passages import TracedView, takes_result_apart
from aotgrad.transforms.captured_function import CapturedFunction

GradientEntry = Any
"""A tensor, or the `GradientEdge` at which its gradient arrives, or a number."""


def entry_of(value: Any) -> GradientEntry:
    """Where the gradient of an input arrives: the input, or its current edge, which a later in-place change replaces."""
    if not isinstance(value, torch.Tensor) or value.grad_fn is None:
        return value
    return GradientEdge(*torch_compat.gradient_edge(value))


def edge_of_entry(entry: GradientEntry) -> tuple[Any, int]:
    return (entry.node, entry.output_nr) if isinstance(entry, GradientEdge) else torch_compat.gradient_edge(entry)


Found = Mapping[Gradient, torch.Tensor | None]


@dataclass(frozen=True)
class RerunGraph:
    """The autograd graph of a second run of a function.

    Attributes:
        roots: the results that gradients enter at, and the returned views that they pass through.
        inputs: of the function.
        entries: where gradients leave, for each input.
        joined: tensors whose gradients belong to an input as well, with its position.
        wrapper_views: the views among the wrapper subclasses that gradients pass through.
    """

    function: CapturedFunction
    roots: Mapping[ForwardResult | ReturnedView, torch.Tensor]
    inputs: Sequence[Any]
    entries: Sequence[GradientEntry]
    joined: Sequence[tuple[int, torch.Tensor]]
    wrapper_views: Mapping[ReturnedWrapper, TracedView]

    @functools.cached_property
    def joins(self) -> Joins:
        return Joins.of(self.joined)

    def gradients_of_inputs(
        self,
        roots: Sequence[torch.Tensor],
        wanted: Sequence[Any],
        tangents: Sequence[torch.Tensor],
        create_graph: bool,
    ) -> Found:
        """The gradients of wanted inputs, in a backward of one segment, for tangents of `roots`."""
        leaves = [self.entries[gradient.of.index] for gradient in wanted]
        if not leaves:
            return {}
        with differentiated_as_in_eager(roots):
            found = torch.autograd.grad(roots, leaves, tangents, create_graph=create_graph, allow_unused=True)
        return dict(zip(wanted, found, strict=True))

    def gradients_of_segment(
        self,
        slots: Sequence[Any],
        leaving: Collection[GradientTarget],
        tangents: Sequence[torch.Tensor],
        added: Sequence[tuple[GradientEdge, torch.Tensor]],
        create_graph: bool,
    ) -> Found:
        """The gradients that a segment passes on, for tangents of `slots`. Nothing behind the targets `leaving` runs.

        Args:
            added: edges inside, and their tangents.

        Raises:
            HigherOrderError: the function overwrote a value that its backward needs, and autograd does not show where.
        """
        edges = self.result_edges()
        segmentation = self.segmentation(edges)
        entries = {**{target: edge for edge, target in segmentation.targets.items()}, **edges}
        arriving = self.assembled_tangents(dict(zip(slots, tangents, strict=True)))
        pairs = [*((GradientEdge(*entries[place_of(slot)]), tangent) for slot, tangent in arriving.items()), *added]
        places = set(map(place_of, leaving))
        ends = [GradientEdge(*edge) for edge, target in segmentation.targets.items() if target in places]
        if not ends:
            return {}
        results = self.roots.values()
        cut_backward = CutBackward(segmentation, lambda *_: None, joins=self.joins)
        with cut_backward, differentiated_as_in_eager(results):
            roots, values = [edge for edge, _ in pairs], [value for _, value in pairs]
            torch.autograd.grad(roots, ends, values, create_graph=create_graph, allow_unused=True)
        return cut_backward.terms()

    def assembled_tangents(self, tangents: Mapping[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
        """The tangents, with wrapper subclasses in place of their parts."""
        forms, parts = self.function.joint.cut_forms, dict[Any, dict[int, torch.Tensor]]()
        for slot, tangent in tangents.items():
            is_part = isinstance(slot, SegmentBoundary) and slot.is_part
            parts.setdefault(replace(slot, part=0) if is_part else slot, {})[slot.part if is_part else 0] = tangent
        return {slot: forms[slot].assemble(some, self.inputs) if slot in forms else some[0] for slot, some in parts.items()}

    def result_edges(self) -> dict[Any, Any]:
        """Where gradients enter, except for returned views."""
        roots = self.roots.items()
        return {slot: torch_compat.gradient_edge(t) for slot, t in roots if not isinstance(slot, ReturnedView)}

    def wrapper_view(self, slot: ReturnedWrapper, edges: Mapping[Any, Any]) -> ExternalView:
        """A wrapper subclass among the results that gradients pass through."""
        if slot in self.wrapper_views:
            view = self.wrapper_views[slot]
            takers = {edge[0]: edge[0].next_functions[0] for edge in edges.values() if takes_result_apart(edge[0])}
            return taken_apart(slot, view, [edge for edge in edges.values() if takers.get(edge[0]) == view.base_edge])
        taker = next(root.grad_fn for of, root in self.roots.items() if of.index >= slot.index and of in edges)
        return taken_apart(slot, taker, [edge for edge in edges.values() if edge[0] is taker])

    def segmentation(self, edges: Mapping[Any, Any]) -> Segmentation:
        """The segments of the backward, cut in the places of the first trace.

        Raises:
            HigherOrderError: see `gradients_of_segment`.
        """
        function = self.function
        behind = [(view, function.meta.result_behind(view.index)) for view in function.views]
        views = [
            ExternalView(view, torch_compat.gradient_edge(self.roots[view]), (edges[base],) if base in edges else ())
            for view, base in behind
        ]
        views += [self.wrapper_view(slot, edges) for slot in function.wrappers]
        inputs = enumerate(function.capture.inputs)
        with_grad = [k for k, spec in inputs if isinstance(spec, TensorInput) and spec.requires_grad]
        starts = {edge_of_entry(self.entries[k]): Primal(k) for k in with_grad}
        starts.update(self.joins.edges)
        failing = passed_over(failing_nodes(self.roots.values())) if function.failures else {}
        chunks = cut_into(function.capture, function.cuts.grad_segments)
        settings = (function.joint.effects, function.cuts.joins_results)
        segmentation = find_segments(edges, starts, chunks, views, failing, *settings)
        assert segmentation is not None, "the function ran otherwise than when it was first traced"
        if len(segmentation.failures) != function.failures:
            raise HigherOrderError(
                "create_graph=True has to know which part of the backward raises since the compiled function changed a "
                "saved value in place, and autograd does not show it for a view or a custom function; change a clone() of "
                "the value"
            )
        return segmentation
