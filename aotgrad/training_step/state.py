"""The state of a training step: the tensors and numbers that a step may read and write besides its arguments.

state = State.of([model, optimizer])
found = state.read()
found.tensors               parameters, buffers, the optimizer's tensors: each once
found.numbers.values        [0.001, 0.9, 0.999, 0.01]: hyperparameters
found.key                   all else that a trace may depend on
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from aotgrad.errors import CaptureError
from aotgrad.guards.python_values import hashable_key
from aotgrad.plan_cache.module_state import LiftedModule
from aotgrad.training_step.numbers import Numbers, by_name

REFUSED: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.LBFGS: "evaluates the loss in a loop that ends when values say so",
    torch.optim.SparseAdam: "takes sparse gradients, which a graph does not update",
}
"""Optimizers whose step cannot be one graph, and why."""


@dataclass(frozen=True)
class Snapshot:
    """The state at one moment.

    Attributes:
        tensors: parameters, buffers, and the tensors of optimizers and of `state` itself; each once.
        gradients: the `.grad` of each of them, `None` where there is none.
        numbers: the numbers that plans take as inputs.
        key: hashable; everything else that a trace of the step may depend on.
    """

    tensors: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor | None, ...]
    numbers: Numbers
    key: Hashable


@dataclass(frozen=True)
class State:
    """The objects that a step may change."""

    modules: tuple[LiftedModule, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    tensors: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, objects: Iterable[Any]) -> State:
        """Sort objects by kind.

        Raises:
            CaptureError: an object is of no known kind, or is an optimizer whose step cannot be one graph.
        """
        objects = pytree.tree_leaves(list(objects))
        for value in objects:
            reject_unknown(value)
        modules = tuple(LiftedModule(each) for each in objects if isinstance(each, nn.Module))
        optimizers = tuple(each for each in objects if isinstance(each, torch.optim.Optimizer))
        return cls(modules, optimizers, tuple(each for each in objects if isinstance(each, torch.Tensor)))

    def read(self) -> Snapshot:
        """The state as it is now."""
        read = [lifted.read() for lifted in self.modules]
        owned = itertools.chain(*(tensors for tensors, _ in read), self.tensors, *map(optimizer_tensors, self.optimizers))
        distinct = {id(tensor): tensor for tensor in owned}
        places = {identity: place for place, identity in enumerate(distinct)}
        tensors = tuple(distinct.values())
        key = (tuple(key for _, key in read), *(structure_of(each, places) for each in self.optimizers))
        return Snapshot(tensors, tuple(map(gradient_of, tensors)), Numbers.of(self.optimizers), key)


def reject_unknown(value: Any) -> None:
    """Raise if an object cannot be part of the state.

    Raises:
        CaptureError
    """
    reason = next((text for kind, text in REFUSED.items() if isinstance(value, kind)), None)
    if reason is not None:
        raise CaptureError(
            f"train_step: {type(value).__name__} {reason}. Use another optimizer, or leave its step() outside of the step"
        )
    if not isinstance(value, (nn.Module, torch.optim.Optimizer, torch.Tensor)):
        raise CaptureError(
            f"train_step: an object of `state` is of type {type(value).__name__}; modules, optimizers and tensors can be "
            "listed there"
        )


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient of a leaf; to ask others for it warns."""
    return tensor.grad if tensor.is_leaf else None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """The tensors of an optimizer: its parameters, tensors among the hyperparameters, and its state."""
    for value in pytree.tree_leaves([optimizer.param_groups, list(optimizer.state.values())]):
        if isinstance(value, torch.Tensor):
            yield value


def structure_of(optimizer: torch.optim.Optimizer, places: dict[int, int]) -> Hashable:
    """What a trace of an optimizer's step depends on, besides values of tensors and numbers."""
    attributes = {name: value for name, value in vars(optimizer).items() if name not in ("param_groups", "state")}
    groups = [by_name(group) for group in optimizer.param_groups]
    state = [(places[id(parameter)], by_name(values)) for parameter, values in optimizer.state.items()]
    parts = pytree.tree_map(lambda leaf: kind_of_leaf(leaf, places), [groups, state])
    return (type(optimizer), hashable_key(by_name(attributes)), hashable_key(parts))


def kind_of_leaf(leaf: Any, places: dict[int, int]) -> Any:
    """A tensor by its place, a float by its type, other values by content."""
    if isinstance(leaf, torch.Tensor):
        return ("tensor", places[id(leaf)])
    return float if type(leaf) is float else leaf
