"""The contract of a partition: each half fits its signature; the backward takes what the forward saves, with equal types."""

from __future__ import annotations

from typing import Any

from aotgrad.graph.host_copies import RELOAD, WAIT
from aotgrad.ir import GraphHalf, Partition
from aotgrad.printing import type_text
from aotgrad.slots import (
    FORWARD_RESULTS,
    Gradient,
    GuardedValue,
    NextOffset,
    Primal,
    RandomOffset,
    RandomSeed,
    Saved,
    SavedSymInt,
    Tangent,
)
from aotgrad.verify.common import (
    Problems,
    check_graph,
    recorded_value,
    same_slots,
    without_repeats,
)


def check_partition(partition: Partition) -> Problems:
    """Check that each half fits its signature, and that the backward takes what the forward saves, with equal types."""
    outputs = (*FORWARD_RESULTS, Saved, SavedSymInt, NextOffset)
    yield from check_half(
        "forward", partition.forward, inputs=(Primal, GuardedValue, RandomSeed, RandomOffset), outputs=outputs
    )
    given = partition.forward.signature.saved
    yield from without_repeats("saved value", given)
    listed = [value.slot for value in partition.saved]
    yield from same_slots("what the forward saves", given, "the list of saved values", listed)
    for value in partition.saved:
        if value.saved_bytes < 0 or not value.reason:
            yield f"{value.slot} has {value.saved_bytes} bytes and the reason {value.reason!r}"
    if partition.backward is None:
        yield from (f"{slot}, but there is no backward" for slot in given)
        return
    yield from check_half("backward", partition.backward, inputs=(Saved, SavedSymInt, Tangent), outputs=Gradient)
    taken = partition.backward.signature.saved
    yield from same_slots("what the forward saves", given, "what the backward takes", taken)
    yield from check_saved_types(partition.forward, partition.backward)
    yield from check_offloaded(partition, partition.forward, partition.backward)


def check_offloaded(partition: Partition, forward: GraphHalf, backward: GraphHalf) -> Problems:
    """The forward waits for each copy to the host, and the backward only fetches from there."""
    sent, given = forward.results, backward.placeholders
    for value in partition.saved:
        if value.host_bytes and sent[value.slot].target is not WAIT:
            yield f"{value.slot} takes {value.host_bytes} bytes of the host, but the forward sends no copy there"
        if value.host_bytes and any(user.target is not RELOAD for user in given[value.slot].users):
            yield f"{value.slot} is on the host, where the backward reads it"


def check_half(name: str, half: GraphHalf, inputs: Any, outputs: Any) -> Problems:
    yield from (f"{name}: {problem}" for problem in check_graph(half.module, half.signature))
    for slot in half.signature.inputs:
        if not isinstance(slot, inputs):
            yield f"{name}: {slot} cannot be an input"
    for slot in half.signature.outputs:
        if not isinstance(slot, outputs):
            yield f"{name}: {slot} cannot be an output"


def check_saved_types(forward: GraphHalf, backward: GraphHalf) -> Problems:
    results, placeholders = forward.results, backward.placeholders
    for slot in backward.signature.saved:
        given, taken = type_text(recorded_value(results[slot])), type_text(placeholders[slot].meta["val"])
        if given != taken:
            yield f"{slot} is {given} in the forward and {taken} in the backward"
