"""What eager runs behind a gradient that is `None`: the engine visits those nodes, too, and a custom function gets zeros.

    h = Reduced.apply(x); a, b = First.apply(h, w), Second.apply(h, v)        both return `None` as the gradient of h
    segments    0: First     1: Second     2: Reduced, which no gradient enters, and which communicates

A segment runs if a gradient enters it. Where one that none enters has work to do, the backward is one segment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from aotgrad.joint.segments import Segmentation, edges_of
from aotgrad.slots import Gradient, Primal, SegmentBoundary


class WorkBehindNone(Exception):
    """A segment that no gradient enters computes or communicates."""

    def __init__(self) -> None:
        super().__init__(
            "the backward of an autograd function computes or communicates, and gets no gradient, since that of another one "
            "returns None; return zeros there"
        )


def has_work_behind_none(
    segmentation: Segmentation, gradients: Iterable[Gradient], entered: Collection[int], collectives: Iterable[Any]
) -> bool:
    """Whether a segment that no gradient enters has a gradient, or a node that communicates.

    Args:
        gradients: what the segments compute.
        entered: the segments that a gradient enters.
        collectives: the nodes that communicate.
    """
    segments = [gradient.segment or 0 for gradient in gradients]
    segments += [segmentation.segment_of[node] for node in collectives if node in segmentation.segment_of]
    return not set(segments).issubset(entered)


def has_cuts_outside(segmentation: Segmentation) -> bool:
    """Whether gradients pass through a result or a view, where others can ask for them."""
    edges = (edge for node in segmentation.segment_of for edge in edges_of(node))
    return any(not isinstance(segmentation.targets.get(edge), (Primal, SegmentBoundary, type(None))) for edge in edges)
