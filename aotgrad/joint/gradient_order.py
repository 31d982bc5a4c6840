"""The order of the gradients of a backward: among its outputs, and among the inputs of each autograd node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aotgrad.ir import BackwardSegment, needs_sentinel
from aotgrad.joint.segments import order_for_engine
from aotgrad.slots import (
    Gradient,
    IntermediateBase,
    OldInput,
    Primal,
    ReturnedView,
    ReturnedWrapper,
    SegmentBoundary,
    Tangent,
    UpdatedInput,
    UserOutput,
)

GRADIENT_KINDS = (
    *(Primal, UpdatedInput, UserOutput, IntermediateBase),
    *(ReturnedView, ReturnedWrapper, OldInput, SegmentBoundary),
)


def gradient_rank(gradient: Gradient) -> tuple[Any, ...]:
    """Orders gradients by segment, and within one: of primals, results, views, cuts."""
    of = gradient.of
    term, part = gradient.term, of.part if isinstance(of, ReturnedWrapper) else 0
    if isinstance(of, SegmentBoundary) and of.is_part:
        term, part = of.term, of.part
    return gradient.segment, GRADIENT_KINDS.index(type(of)), of.index, term, part


def backward_segments(
    entry: Mapping[Tangent, int],
    gradients: Sequence[Gradient],
    left: Sequence[tuple[int, Primal]],
    materialized: frozenset[int],
) -> tuple[BackwardSegment, ...]:
    """The segments, given the segment of each tangent, and the order in which segments complete gradients of primals."""
    rank: dict[Any, int] = {item: position for position, item in enumerate(left)}

    def order(gradient: Gradient) -> tuple[bool, int]:
        primal = isinstance(gradient.of, Primal)
        return primal, rank.get((gradient.segment or 0, gradient.of), len(rank))

    def of_segment(segment: int) -> BackwardSegment:
        tangents = tuple(tangent for tangent, number in entry.items() if number == segment)
        found = sorted((g for g in gradients if (g.segment or 0) == segment), key=order)
        return BackwardSegment(tangents, tuple(in_engine_order(found)), segment in materialized)

    return tuple(map(of_segment, range(max(entry.values()) + 1)))


def in_engine_order(gradients: Sequence[Gradient]) -> list[Gradient]:
    """The order of a node's inputs for which the engine continues in the order of `gradients`.

    The engine adds the terms of a sum in the order of the inputs, and queues the node of the sum at the last term.
    """
    last = {gradient.of: gradient for gradient in gradients}
    earlier = [gradient for gradient in gradients if gradient is not last[gradient.of]]
    return earlier + order_for_engine(list(last.values()), needs_sentinel(len(gradients)))
