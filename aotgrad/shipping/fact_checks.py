"""Facts in a file are checked before they are used: they fit the graph beside which they are stored.

check_facts(entry)          raises DamagedEntry if they are of another graph, or of another type
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch

from aotgrad.cache.entry import GraphText, ShippedPlan, StoredBackward, StoredVariant
from aotgrad.cache.serialize import DamagedEntry
from aotgrad.ir import BackwardSegment
from aotgrad.runtime.backward_facts import BackwardFacts
from aotgrad.runtime.variants import VariantKey
from aotgrad.slots import Saved, of_kind


def check_facts(entry: ShippedPlan) -> None:
    """Raises DamagedEntry."""
    plan = entry.plan
    counts = {len(each) for each in (plan.halves, plan.schedule.facts, entry.backwards)}
    if len(counts) > 1:
        raise DamagedEntry("facts of another number of backwards")
    for half, segment, facts, found in zip(plan.halves, plan.segments, plan.schedule.facts, entry.backwards, strict=False):
        if not all(fit(half, segment, facts, found)):
            raise DamagedEntry("facts of another graph")


def fit(half: GraphText, segment: BackwardSegment, facts: BackwardFacts, found: StoredBackward) -> Iterator[bool]:
    """Whether each of the facts may be one of a graph."""
    lengths = len(half.signature.incoming), len(segment.gradients)
    yield [tuple(map(type, each)) for each in facts.formats] == [(torch.dtype, torch.device)] * lengths[0]
    yield len(facts.sources) == lengths[1] and are_positions(facts.sources, lengths[1])
    yield type(facts.has_cases) is type(found.is_written_over) is bool
    saved = len(of_kind(half.signature.inputs, Saved))
    for key, positions in found.needed:
        yield is_key(key, lengths) and (positions is None or are_positions(positions, saved))
    for variant in found.variants:
        yield is_key(variant.key, lengths) and is_of(half, variant)


def is_key(key: Any, lengths: tuple[int, int]) -> bool:
    return isinstance(key, VariantKey) and (len(key.tangents), len(key.gradients)) == lengths


def is_of(half: GraphText, variant: StoredVariant) -> bool:
    """Whether a variant takes some inputs of a graph, and has its outputs."""
    own, full = half.signature if variant.graph is None else variant.graph.signature, half.signature
    is_part = own.outputs == full.outputs and set(own.inputs) <= set(full.inputs)
    return is_part and (variant.undefined is None or are_positions(variant.undefined, len(full.outputs)))


def are_positions(values: Collection[Any], count: int) -> bool:
    return all(type(value) is int and 0 <= value < count for value in values)
