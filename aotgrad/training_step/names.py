"""The user's names for the tensors of a step, for reports.

state_names(state, found)       0.weight, 0.bias, exp_avg of 0.weight, 0.weight.grad, numbers
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aotgrad.plan_cache.binding import NamedTensor, kind_of
from aotgrad.training_step.state import Snapshot, State


def state_names(state: State, found: Snapshot) -> list[NamedTensor]:
    """The name of each tensor of a state, of each gradient, and of its numbers, in the order of a step's arguments."""
    known = dict(named_tensors(state))
    names = [known.get(id(tensor), NamedTensor(f"state tensor {k}", "buffer")) for k, tensor in enumerate(found.tensors)]
    gradients = [
        NamedTensor(f"{named.name}.grad", "gradient")
        for named, gradient in zip(names, found.gradients, strict=True)
        if gradient is not None
    ]
    return [*names, *gradients, NamedTensor("numbers", "numbers")]


def named_tensors(state: State) -> Iterator[tuple[int, NamedTensor]]:
    """The identity of each tensor that has a name in a module or an optimizer; of a shared one, the last name counts."""
    names: dict[int, str] = {}
    for number, lifted in enumerate(state.modules):
        prefix = "" if len(state.modules) == 1 else f"modules[{number}]."
        for slot in lifted.places.slots:
            tensor = slot.table[slot.key]
            names[id(tensor)] = prefix + slot.name
            yield id(tensor), NamedTensor(prefix + slot.name, kind_of(tensor))
    for optimizer in state.optimizers:
        for parameter, values in optimizer.state.items():
            owner = names.get(id(parameter), "a parameter")
            for name, value in values.items():
                if isinstance(value, torch.Tensor):
                    yield id(value), NamedTensor(f"{name} of {owner}", "optimizer state")
