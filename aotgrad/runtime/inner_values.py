"""Inner values of a call through which gradients of gradients pass on to its node.

    y = tanh(tanh(x @ a) @ b);  g = grad(y.sum(), x, create_graph=True);  (y + g).sum().backward()

Both `y` and `g` depend on the first `tanh`. As in eager, what `g` passes on to it should be added to what arrives from `y`
before the sum passes through `x @ a`. So the node of `y` has one more output for each such value: a stand-in without
memory, which the derivative takes as an argument. Its gradient arrives at the node together with that of `y`.

A call with stand-ins has its node made and run in Python, and one more derivative, of the stand-ins, to call: a tenth of a
millisecond or two. A plan makes them after the first backward in which a derivative has been made of a call, and a gradient
of the call itself arrives, too; and only if the values are so large that products take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.runtime.recomputation import InnerValue, Recomputation

MIN_ELEMENTS = 1 << 16
"""Of all inner values together. A product with 64 columns for each of them takes about half a millisecond of one core."""


@dataclass
class InnerValues:
    """The inner values of a segment.

    Attributes:
        find: finds them; there are none where gradients of gradients keep apart from the node.
        found: the values; `None` as long as no call makes stand-ins.
        redirect: lets later calls make them; set with the function that makes the nodes.
    """

    find: Callable[[], Sequence[InnerValue]]
    found: Sequence[InnerValue] | None = None
    redirect: Callable[[], None] = field(default=lambda: None)

    def watch(self, ctx: Any) -> None:
        """Note that a derivative was made of a call, so that a later backward of its node tells."""
        if self.found is None:
            ctx.is_differentiated = True

    def open(self, call: Recomputation) -> None:
        """Let later calls make stand-ins, if that would pay for this one."""
        if self.found is None:
            found = self.find()
            self.found = found if sum(value.count(call.primals) for value in found) >= MIN_ELEMENTS else ()
            if self.found:
                self.redirect()

    def stand_ins(self, call: Recomputation) -> tuple[torch.Tensor, ...]:
        """New stand-ins for a call."""
        if not self.found or torch_compat.has_saved_tensor_hooks():  # hooks see what the function saves, and nothing else
            return ()
        return tuple(value.stand_in(call.primals) for value in self.found)


def attach_with_stand_ins(apply: Callable, attach: Callable) -> Callable:
    """`attach`, for nodes with stand-ins. `apply` makes a node in Python."""

    def attach_all(backward: Any, outputs: tuple, saved: tuple, call: Recomputation, *others: Any) -> tuple:
        stand_ins = backward.inner.stand_ins(call)
        if not stand_ins:
            return attach(backward, outputs, saved, call, *others)
        results = apply(backward, (*outputs, *stand_ins), (*saved, *stand_ins), call, *others)
        if (node := results[-1].grad_fn) is not None:
            node.stand_ins = len(stand_ins)
        return results[: len(outputs)]

    return attach_all
