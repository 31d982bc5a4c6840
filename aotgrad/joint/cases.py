"""Traces the backward of custom functions once for each set of gradients that may arrive.

With `set_materialize_grads(False)`, an undefined gradient is `None`, and the function decides in Python what to compute. One
trace shows one case. Such a function is a segment by itself if its gradients arrive separately; here its other cases are
traced, and `by_defined` joins them in the graph.

    forward   x -> (x * 2, x * 3)        gradient of x    both arrive: add(mul(t1, 2), mul(t2, 3))    t1 alone: mul(t1, 2)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from torch.autograd.graph import GradientEdge

from aotgrad.errors import CaptureError
from aotgrad.graph.cases import Case, by_defined
from aotgrad.ir import OpenTrace
from aotgrad.joint.segments import CutBackward, Edge, Segmentation, edges_of
from aotgrad.slots import Gradient, GradientTarget, SegmentBoundary, Tangent


@dataclass(frozen=True)
class OtherCases:
    """The gradients of one autograd node in the cases in which some of its tangents are undefined."""

    tangents: tuple[Tangent, ...]
    gradients: Mapping[Case, Mapping[Gradient, torch.Tensor]]

    def slots(self) -> list[Gradient]:
        """The gradients that are defined in some of these cases."""
        return list(dict.fromkeys(itertools.chain(*self.gradients.values())))


def trace_other_cases(
    segmentation: Segmentation,
    entered: Mapping[Tangent, Edge],
    live: Mapping[Tangent, torch.Tensor],
    known: Sequence[Gradient],
) -> list[OtherCases]:
    """The other cases of each node that decides by what arrives.

    Args:
        entered: where each tangent enters.
        live: the tensor of each tangent.
        known: the gradients of the case in which all arrive.

    Raises:
        CaptureError: such a node changes a tensor in place, which would happen in each case; see also `reject_new_paths`.
    """
    if not segmentation.deciding.isdisjoint(segmentation.alone):
        raise CaptureError(
            "the backward of an autograd function with set_materialize_grads(False) and several results changes a tensor in "
            "place or draws random numbers, and may get gradients of some results only; call set_materialize_grads(True)"
        )
    found = []
    for node in sorted(segmentation.deciding, key=segmentation.segment_of.__getitem__):
        tangents = tuple(tangent for tangent, edge in entered.items() if edge[0] is node)
        gradients = {}
        for case in partial_cases(len(tangents)):
            defined = itertools.compress(tangents, case)
            gradients[case] = gradients_of_node(segmentation, node, [(entered[t], live[t]) for t in defined], known)
        found.append(OtherCases(tangents, gradients))
        reject_new_paths(found[-1], live)
    return found


def reject_new_paths(node: OtherCases, live: Collection[Tangent]) -> None:
    """Raise for a gradient that reaches a segment which none reaches if all arrive: its backward is not traced.

    Raises:
        CaptureError: the function returns `None` there.
    """
    if any(isinstance(slot.of, SegmentBoundary) and Tangent(slot.of) not in live for slot in node.slots()):
        raise CaptureError(
            "the backward of an autograd function with set_materialize_grads(False) passes a gradient on if some of its "
            "gradients are undefined, and None if all are defined; return zeros there"
        )


def partial_cases(count: int) -> Iterator[Case]:
    """The cases in which some of `count` tangents are defined, and some are not."""
    cases = itertools.product((True, False), repeat=count)
    return (case for case in cases if any(case) and not all(case))


def gradients_of_node(
    segmentation: Segmentation, node: Any, arriving: Sequence[tuple[Edge, torch.Tensor]], known: Sequence[Gradient]
) -> dict[Gradient, torch.Tensor]:
    """What a node passes on if only `arriving` gradients arrive."""
    edges, values = [GradientEdge(*edge) for edge, _ in arriving], [value for _, value in arriving]
    ends = [GradientEdge(*edge) for edge in dict.fromkeys(edges_of(node))]
    with CutBackward(segmentation, lambda *_: None) as cut:
        torch.autograd.grad(edges, ends, values, retain_graph=True, allow_unused=True)
    number = segmentation.segment_of[node]
    found: dict[Gradient, torch.Tensor] = {}
    for (_, target), terms in cut.collected.items():
        slots = terms_of(target, number if segmentation.count > 1 else None, known)
        found.update(zip(slots, terms, strict=False))
        if len(terms) > len(slots):
            found[slots[-1]] = functools.reduce(torch.add, terms[len(slots) - 1 :])
    return found


def terms_of(target: GradientTarget, segment: int | None, known: Sequence[Gradient]) -> list[Gradient]:
    """The terms of a gradient that a segment passes on; one, if it passes on none where all arrive."""
    slots = [slot for slot in known if slot.of == target and slot.segment == segment]
    return slots or [Gradient(target, segment)]


def join_cases(
    trace: OpenTrace, cases: Sequence[OtherCases], live: Mapping[Tangent, torch.Tensor], whole: Mapping[Gradient, Any]
) -> dict[Gradient, fx.Node]:
    """The nodes that join the cases of each gradient. `whole` are the nodes of the case in which all arrive, or `None`."""
    joined: dict[Gradient, fx.Node] = {}
    for node in cases:
        keys = [(True,) * len(node.tangents), *node.gradients]
        tangents = [trace.node_of(live[tangent]) for tangent in node.tangents]
        of_node = {slot.segment for slot in node.slots()}
        for slot in dict.fromkeys([*node.slots(), *(slot for slot in whole if slot.segment in of_node and whole[slot])]):
            others = [None if (g := found.get(slot)) is None else trace.node_of(g) for found in node.gradients.values()]
            joined[slot] = join(trace.graph, tangents, keys, [whole.get(slot), *others])
    return joined


def join(graph: fx.Graph, tangents: list[fx.Node], cases: list[Case], values: list[fx.Node | None]) -> fx.Node:
    """One node for a gradient in all cases."""
    first = next(value for value in values if value is not None)
    node = graph.call_function(by_defined, (tangents, cases, values))
    node.meta = {**first.meta, "autograd_backward": True}
    return node
