"""When the function writes its inputs: before or after the last tensor that autograd saves.

    def f(x, count): y = x.exp(); count.add_(1); return y * 2       `exp` saves `y`; `count` is written afterwards

A checkpoint around a call ends the recomputation in the backward when all that was saved is there. What is written after
that is not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.graph.autograd_nodes import autograd_nodes
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.ir import WriteTime


def write_times(
    writes: Sequence[torch_compat.InPlaceWrite],
    arguments: Sequence[Any],
    results: Sequence[Any],
    node_of: Callable[[Any], Any],
) -> Mapping[int, WriteTime]:
    """The inputs that are written by an op, each with the time."""
    storages = {k: torch_compat.storage_id(value) for k, value in enumerate(arguments) if torch_compat.has_storage(value)}
    found = [write for write in writes if not write.storages.isdisjoint(storages.values())]
    last = last_saving_node([*arguments, *results]) if found else None
    times: dict[int, set[bool]] = {}
    for write in found:
        for storage in write.storages.intersection(storages.values()):
            times.setdefault(storage, set()).add(last is not None and is_before(write, last, node_of))
    return {k: WriteTime.of(times[storage]) for k, storage in storages.items() if storage in times}


def last_saving_node(values: Sequence[Any]) -> Any:
    """The last autograd node behind some values that saves a tensor; `None` if there is none."""
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    nodes = autograd_nodes(filter(torch_compat.has_usable_history, tensors))
    by_age = sorted(nodes, key=torch_compat.node_sequence_nr, reverse=True)
    return next(filter(torch_compat.saves_a_tensor, by_age), None)


def is_before(write: torch_compat.InPlaceWrite, node: Any, node_of: Callable[[Any], Any]) -> bool:
    """Whether an autograd node saves something after a write, which may be a part of its own op."""
    number = torch_compat.node_sequence_nr(node)
    if number != write.node_number:
        return write.node_number < number
    if torch_compat.is_custom_node(node):  # it saves at the end; its forward runs without grad mode
        return not write.is_differentiated
    if torch_compat.saves_packed_values(node):
        return True
    saved = (value for value in torch_compat.saved_tensors(node) if torch_compat.any_functional([value]))
    return any(write.after < memory_owner(node_of(value)) for value in saved)
