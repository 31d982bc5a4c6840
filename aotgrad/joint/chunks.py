"""Cuts a sequence of autograd nodes, in the order in which they run, into chunks that become segments.

    chunks_of_equal_length("abcd", 2)                                     a b | c d
    chunks_of_equal_weight("abcd", successors, {"b": 5, "d": 5}, 2)       a b | c d: a chunk ends where it has its weight

Weights are bytes of gradients: the gradients of a chunk are alive together until its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

Item = TypeVar("Item")

SLACK = 1.25
"""A chunk may weigh this multiple of the largest weight, which avoids small chunks."""


def chunks_of_equal_length(order: Sequence[Item], count: int) -> dict[Item, int]:
    """Cuts a sequence into `count` parts of about the same length."""
    return {item: k * count // len(order) for k, item in enumerate(order)}


def chunks_of_equal_weight(
    order: Sequence[Item], successors: Mapping[Item, Sequence[Item]], weights: Mapping[Item, int], count: int
) -> dict[Item, int]:
    """At most `count` chunks, with the heaviest about as light as possible; each but the last ends where it has its weight.

    An item that only passes on the result of another one (a transpose of a gradient) is in the chunk of that item.
    """
    maker = makers(order, successors, weights)
    own = dict.fromkeys(order, 0)
    for item in order:
        own[maker[item]] += weights[item]
    parts = lightest_parts([own[item] for item in order if own[item]], count)
    chunk, chunks = parts[-1] if parts else 0, {}
    for item in reversed(order):
        chunk = parts.pop() if own[item] else chunk
        chunks[item] = chunk
    return {item: chunks[maker[item]] for item in order}


def makers(
    order: Sequence[Item], successors: Mapping[Item, Sequence[Item]], weights: Mapping[Item, int]
) -> dict[Item, Item]:
    """For each item, the one that makes its result: the item where an unbranched path to an end starts, or itself."""
    before: dict[Item, list[Item]] = {item: [] for item in order}
    for item in order:
        for successor in successors[item]:
            before[successor].append(item)
    ends: set[Item] = set()
    for item in reversed(order):
        onward = successors[item]
        if len(before[item]) == 1 and len(onward) + (weights[item] > 0) == 1 and ends.issuperset(onward):
            ends.add(item)
    maker: dict[Item, Item] = {}
    for item in order:
        maker[item] = maker[before[item][0]] if item in ends else item
    return maker


def lightest_parts(weights: Sequence[int], count: int) -> list[int]:
    """The part of each weight, for at most `count` parts with the heaviest about as light as possible."""
    low, high = int(SLACK * max(weights, default=0)), sum(weights)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if parts_within(weights, middle)[-1] < count else (middle + 1, high)
    return parts_within(weights, low)


def parts_within(weights: Sequence[int], limit: int) -> list[int]:
    """The part of each weight, if a part weighs at most `limit` or has a single weight."""
    parts: list[int] = []
    part = held = 0
    for weight in weights:
        if held and held + weight > limit:
            part, held = part + 1, 0
        held += weight
        parts.append(part)
    return parts
