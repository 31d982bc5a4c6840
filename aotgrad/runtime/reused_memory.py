"""Copies of results in memory that the backend reuses: a replay of a CUDA graph writes to the addresses of the last one.

Eager's results stay, so what may be read after the next replay is copied:

    a result                                      at once
    a gradient that becomes the `.grad` of a leaf before the next forward, if it still is the `.grad` then
    another gradient, for a hook or for `grad`    at once
    a saved value that is still needed            before the next forward, if a backward has run in between

So a loop that sets gradients to `None` copies none of its parameters' gradients. Forwards that wait for their backwards do
not reuse the memory of one another.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.graph.ends import outputs_of
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.ir import BoxedCallable, GraphHalf


@dataclass
class LateCopies:
    """What to copy before the next forward of a thread: memory is reused within a thread.

    Attributes:
        gradients: leaves, and the address of the gradient that each one got.
        saved: what forwards have saved.
        is_due: a backward has run since the last forward.
    """

    gradients: list[tuple[weakref.ref[torch.Tensor], int]] = field(default_factory=list)
    saved: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    is_due: bool = False

    def make(self) -> None:
        """Copy what somebody still has."""
        if not self.is_due:
            self.saved = [each for each in self.saved if each() is not None]
            return
        gradients, saved, self.gradients, self.saved, self.is_due = self.gradients, self.saved, [], [], False
        for leaf, address in gradients:
            gradient = None if (tensor := leaf()) is None else tensor.grad
            if gradient is not None and gradient.data_ptr() == address:
                gradient.data = copy_of(gradient)
        for each in saved:
            if (value := each()) is not None:
                value.data = copy_of(value)


class OfThread(threading.local):
    def __init__(self) -> None:
        self.late = LateCopies()


OF_THREAD = OfThread()


@dataclass(frozen=True)
class ResultCopies:
    """The positions of the results of a forward that are copied `now`, at once, and `late`, before the next forward."""

    now: tuple[int, ...]
    late: tuple[int, ...]

    @classmethod
    def of(cls, forward: GraphHalf, is_saved: Sequence[bool]) -> ResultCopies:
        """Of what the forward computes: arguments are not in reused memory. `is_saved`: which results are only saved."""
        owners = enumerate(map(memory_owner, outputs_of(forward.module.graph)))
        computed = [k for k, owner in owners if getattr(owner, "op", None) == "call_function"]
        return cls(tuple(k for k in computed if not is_saved[k]), tuple(k for k in computed if is_saved[k]))


@dataclass(frozen=True)
class ForwardInReusedMemory:
    """A compiled forward, and what copies its results."""

    run: BoxedCallable
    copies: ResultCopies

    def __call__(self, inputs: list[Any]) -> list[Any]:
        late = OF_THREAD.late
        late.make()
        results = list(self.run(inputs))
        for position in self.copies.now:
            if isinstance(results[position], torch.Tensor):
                results[position] = copy_of(results[position])
        for position in self.copies.late:
            if isinstance(results[position], torch.Tensor):
                # The backend may return the same tensor in each replay: it must not get the memory of a copy.
                results[position] = results[position].detach()
                late.saved.append(weakref.ref(results[position]))
        return results


def keep_gradients(node: Any, results: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a node's backward: those that are copied later, and copies of the others."""
    late: LateCopies = node.late
    late.is_due = True
    edges = node.next_functions
    first = len(results) - len(edges)
    kept = []
    for (edge, _), gradient in zip(edges, results[first:], strict=True):
        if gradient is None or gradient.requires_grad:  # with `create_graph`, a result of another function, a copy already
            kept.append(gradient)
        elif torch_compat.is_only_accumulated(edge):
            late.gradients.append((weakref.ref(edge.variable), gradient.data_ptr()))
            kept.append(gradient)
        else:
            kept.append(copy_of(gradient))
    return (*results[:first], *kept)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the same layout in memory of its own."""
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(tensor.untyped_storage().clone(), tensor.storage_offset(), tensor.size(), tensor.stride())
