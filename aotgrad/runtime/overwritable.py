"""Which saved values a backward may write over, and whether it may in a call.

A gradient that is as large as a saved value can take its memory: that of the logits of a language model, for example, once
the backward has read them. In: the halves of a partition. Out: for each segment, the large values that the forward computes
for it alone. In a call, `are_owned` asks whether nobody else holds them: a hook, another node, a view.

    logits = x @ w; loss = logits.logsumexp(1).sum()         the gradient of the logits takes their memory
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.ir import GraphHalf, Partition
from aotgrad.slots import Saved

SMALLEST = 1 << 16
SMALLEST_SHARE = 8
"""A value is worth asking for if it has at least `SMALLEST` bytes, and this part of those of the largest one."""


def overwritable_values(partition: Partition, segments: Sequence[GraphHalf]) -> tuple[frozenset[Saved], ...]:
    """For each segment, the saved values that it may write over: those that no other segment and no result shares."""
    computed = values_of_their_own(partition.forward)
    takers = Counter(slot for half in segments for slot in half.signature.inputs if slot in computed)
    smallest = max(SMALLEST, max(computed.values(), default=0) // SMALLEST_SHARE)
    worth = {slot for slot, size in computed.items() if takers[slot] == 1 and size >= smallest}
    return tuple(frozenset(worth.intersection(half.signature.inputs)) for half in segments)


def values_of_their_own(forward: GraphHalf) -> dict[Saved, int]:
    """The bytes of the saved values that the forward computes, and that share memory with no other output.

    If a size is symbolic, none: the graph would be compiled after the guards were read.
    """
    results = forward.results
    owners = Counter(map(memory_owner, results.values()))
    found = {}
    for slot, result in results.items():
        owner, value = memory_owner(result), getattr(result, "meta", {}).get("val")
        is_own = isinstance(slot, Saved) and owners[owner] == 1 and getattr(owner, "op", None) == "call_function"
        if is_own and isinstance(value, torch.Tensor) and not torch_compat.has_symbols(value):
            found[slot] = value.numel() * value.element_size()
    return found


def are_owned(values: Sequence[Any], positions: Collection[int]) -> bool:
    """Whether nobody but `values` and a node that has saved them holds these tensors, or shares their memory."""
    for position in positions:
        if references_to(values, position) > references_of_one():
            return False
        value = values[position]
        if torch_compat.owners_of(value) != PYTHON_AND_THE_NODE or torch_compat.sharers_of_memory(value) != 1:
            return False
    return True


def references_to(values: Sequence[Any], position: int) -> int:
    return sys.getrefcount(values[position])


@functools.cache
def references_of_one() -> int:
    """What is counted for a tensor that one sequence and one node hold. It depends on the versions of Python and torch."""
    with torch.enable_grad(), torch.inference_mode(False):
        values = [torch.ones(1, device="cpu", requires_grad=True)]
        result = values[0].sin()  # its node saves the input
    references = references_to(values, 0)
    del result
    return references


PYTHON_AND_THE_NODE = 2
