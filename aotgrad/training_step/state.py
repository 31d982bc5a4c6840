"""The state of a training step: the tensors and numbers that a step may read and write besides its arguments.

state = State.of([model, optimizer])
found = state.read()
found.tensors               parameters, buffers, the optimizer's tensors: each once
found.numbers.values        [0.001, 0.9, 0.999, 0.01]: hyperparameters
found.key                   all else that a trace may depend on
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from aotgrad import native
from aotgrad.errors import CaptureError
from aotgrad.guards.dictionaries import are_identical
from aotgrad.guards.python_values import HashedOnce
from aotgrad.plan_cache.module_state import LiftedModule
from aotgrad.training_step.numbers import Numbers
from aotgrad.training_step.optimizer_state import OptimizerState
from aotgrad.training_step.scaler_state import ScalerState

REFUSED: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.LBFGS: "evaluates the loss in a loop that ends when values say so",
    torch.optim.SparseAdam: "takes sparse gradients, which a graph does not update",
}
"""Optimizers whose step cannot be one graph, and why."""


@dataclass(frozen=True)
class Snapshot:
    """The state at one moment.

    Attributes:
        tensors: parameters, buffers, and the tensors of optimizers, scalers and of `state` itself; each once.
        gradients: the `.grad` of each of them, `None` where there is none.
        numbers: the numbers that plans take as inputs.
        key: hashable; everything else that a trace of the step may depend on, but for which gradients there are.
    """

    tensors: tuple[torch.Tensor, ...]
    gradients: tuple[torch.Tensor | None, ...]
    numbers: Numbers
    key: Hashable

    @property
    def has_gradient(self) -> tuple[bool, ...]:
        return tuple(gradient is not None for gradient in self.gradients)


@dataclass
class State:
    """The objects that a step may change, and what was `known` of them at the last read."""

    modules: tuple[LiftedModule, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    scalers: tuple[torch.amp.GradScaler, ...]
    tensors: tuple[torch.Tensor, ...]
    known: KnownState | None = None

    @classmethod
    def of(cls, objects: Iterable[Any]) -> State:
        """Sort objects by kind.

        Raises:
            CaptureError: an object is of no known kind, or is an optimizer whose step cannot be one graph.
        """
        objects = pytree.tree_leaves(list(objects))
        for value in objects:
            reject_unknown(value)
        found = (each for each in objects if isinstance(each, nn.Module))
        modules = tuple(LiftedModule(each, owns_attributes=True, is_part=True) for each in found)
        optimizers = tuple(each for each in objects if isinstance(each, torch.optim.Optimizer))
        scalers = tuple(each for each in objects if isinstance(each, torch.amp.GradScaler))
        return cls(modules, optimizers, scalers, tuple(each for each in objects if isinstance(each, torch.Tensor)))

    @property
    def objects(self) -> tuple[Any, ...]:
        """The modules with their parts, optimizers, scalers and tensors."""
        parts = itertools.chain(*(lifted.module.modules() for lifted in self.modules))
        return (*parts, *self.with_attributes, *self.tensors)

    @property
    def with_attributes(self) -> tuple[Any, ...]:
        """The objects whose attributes a step may assign."""
        return (*self.optimizers, *self.scalers)

    def read(self) -> Snapshot:
        """The state as it is now."""
        modules = [lifted.read() for lifted in self.modules]
        known = self.known
        if known is None or not known.is_current(modules):
            known = self.known = self.read_anew(modules)
        return Snapshot(known.tensors, known.read_gradients(known.tensors), known.numbers, known.key)

    def read_anew(self, modules: Sequence[tuple[Sequence[torch.Tensor], Hashable]]) -> KnownState:
        others = (*map(OptimizerState, self.optimizers), *map(ScalerState, self.scalers))
        owned = itertools.chain(*(tensors for tensors, _ in modules), self.tensors, *(each.tensors for each in others))
        distinct = {id(tensor): tensor for tensor in owned}
        places = {identity: place for place, identity in enumerate(distinct)}
        keys = tuple(key for _, key in modules)
        key = HashedOnce((keys, *(each.structure(places) for each in others)))
        if self.known is not None and key == self.known.key:
            key = self.known.key  # one object is compared by identity
        read_gradients = native.lookup("gradients_of", gradients_of)
        return KnownState(modules, others, tuple(distinct.values()), Numbers.of(self.optimizers), key, read_gradients)


@dataclass(frozen=True)
class KnownState:
    """What a read has found, gradients aside; see `Snapshot`. `modules`: the tensors and keys of the modules."""

    modules: Sequence[tuple[Sequence[torch.Tensor], Hashable]]
    others: Sequence[OptimizerState | ScalerState]
    tensors: tuple[torch.Tensor, ...]
    numbers: Numbers
    key: Hashable
    read_gradients: Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor | None, ...]]

    def is_current(self, modules: Sequence[tuple[Sequence[torch.Tensor], Hashable]]) -> bool:
        """Whether a new read would find the same, if these are the tensors and keys of the modules."""
        pairs = zip(modules, self.modules, strict=True)  # a key tells how many tensors there are
        same = all(key is before and are_identical(found, known) for (found, key), (known, before) in pairs)
        return same and all(each.is_current() for each in self.others)


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
    if not isinstance(value, (nn.Module, torch.optim.Optimizer, torch.amp.GradScaler, torch.Tensor)):
        raise CaptureError(
            f"train_step: an object of `state` is of type {type(value).__name__}; modules, optimizers, gradient scalers and "
            "tensors can be listed there"
        )


def gradients_of(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    """The gradients of leaves, `None` for other tensors, which warn if they are asked for it."""
    return tuple(tensor.grad if tensor.is_leaf else None for tensor in tensors)
