"""The state of an optimizer: its tensors, its numbers, and what else a trace of its step depends on.

    state = OptimizerState(optimizer)
    state.tensors                   parameters, tensors among the hyperparameters, and those of its state
    state.structure(places)         all else that a trace may read, numbers aside; hashable
    state.is_current()              whether a new read would find the same, numbers aside

It is cheap to ask whether a state is current: a schedule changes numbers only.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree

from aotgrad.guards.dictionaries import are_identical
from aotgrad.guards.python_values import hashable_key, is_fixed
from aotgrad.plan_cache.module_state import Unchanged, Watched
from aotgrad.training_step.numbers import by_name


class OptimizerState:
    """What a read of an optimizer has found."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        leaves = pytree.tree_leaves([optimizer.param_groups, list(optimizer.state.values())])
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.groups = [ParameterGroup(group) for group in optimizer.param_groups]
        self.unchanged = Unchanged(watched_in(optimizer), hashable_key)

    def is_current(self) -> bool:
        groups = self.optimizer.param_groups
        return (
            self.unchanged.holds()
            and len(groups) == len(self.groups)
            and all(known.holds_for(group) for known, group in zip(self.groups, groups, strict=True))
        )

    def structure(self, places: Mapping[int, int]) -> Hashable:
        """What a trace of a step depends on besides values of tensors and numbers; tensors by their place."""
        optimizer = self.optimizer
        groups = [by_name(group) for group in optimizer.param_groups]
        state = [(places[id(parameter)], by_name(values)) for parameter, values in optimizer.state.items()]
        parts = pytree.tree_map(lambda leaf: kind_of_leaf(leaf, places), [groups, state])
        return (type(optimizer), hashable_key(by_name(attributes_of(optimizer))), hashable_key(parts))


def kind_of_leaf(leaf: Any, places: Mapping[int, int]) -> Any:
    """A tensor by its place, a float by its type, other values by content."""
    if isinstance(leaf, torch.Tensor):
        return ("tensor", places[id(leaf)])
    return float if type(leaf) is float else leaf


def attributes_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {name: value for name, value in vars(optimizer).items() if name not in ("param_groups", "state")}


def watched_in(optimizer: torch.optim.Optimizer) -> Watched:
    """An optimizer's attributes and the entries of its state. Its groups are compared apart: a schedule assigns there."""
    watched = Watched.of(optimizer, attributes_of(optimizer).values())
    watched.add_dict(optimizer.state)
    for values in optimizer.state.values():
        watched.add(values)
    return watched


ABSENT = object()


class GroupEntry(NamedTuple):
    """An entry of a parameter group, see `is_immutable` and `key_without_numbers`."""

    name: str
    value: Any
    is_immutable: bool
    kind: Hashable

    @classmethod
    def of(cls, name: str, value: Any) -> GroupEntry:
        return cls(name, value, is_immutable(value), key_without_numbers(value))

    def holds_for(self, now: Any) -> bool:
        """Whether the entry is the same, or another number."""
        if self.is_immutable and (now is self.value or type(now) is type(self.value) is float):
            return True
        return key_without_numbers(now) == self.kind


class ParameterGroup:
    """A parameter group as it was read."""

    def __init__(self, group: dict[str, Any]) -> None:
        self.group = group
        self.parameters = list(group["params"])
        self.others = [GroupEntry.of(name, value) for name, value in group.items() if name != "params"]

    def holds_for(self, group: dict[str, Any]) -> bool:
        """Whether it is the same group, with the same entries but for its numbers."""
        parameters = group["params"]
        return (
            group is self.group
            and len(parameters) == len(self.parameters)
            and are_identical(parameters, self.parameters)
            and len(group) == len(self.others) + 1
            and all(entry.holds_for(group.get(entry.name, ABSENT)) for entry in self.others)
        )


def is_immutable(value: Any) -> bool:
    """Whether a value stays the same as long as it is the same object."""
    return is_fixed(value) or (type(value) is tuple and all(map(is_fixed, value)))


def key_without_numbers(value: Any) -> Hashable:
    """The key of a value, floats by their type and tensors by identity."""
    return hashable_key(pytree.tree_map(lambda leaf: float if type(leaf) is float else leaf, value))
