"""Backwards that the function itself runs: `backward()` or `autograd.grad` in a training step.

    loss = model(x); loss.backward()        nodes of the backward: meta["inner_backward"] = 0
                                            those that compute gradients: meta["inner_gradient"] = True

The others compute what gradients are multiplied with, such as `cos(x)` for `sin(x)`. The partition may compute these before.
"""

from __future__ import annotations

from collections.abc import Collection

import torch.fx as fx

from aotgrad import torch_compat


class InnerBackward:
    """One run of the engine. `starts`: the gradients that it starts from; `gradients`: these, and those that it computes."""

    def __init__(self, number: int, starts: Collection[fx.Node]) -> None:
        self.number, self.starts = number, frozenset(starts)
        self.gradients = set(starts)

    def mark(self, node: fx.Node, is_rerun: bool) -> None:
        """Mark a node that the run has recorded. `is_rerun`: a checkpointed region runs a second time."""
        node.meta["inner_backward"] = self.number
        if not self.gradients.isdisjoint(node.all_input_nodes):
            self.gradients.add(node)
            node.meta["inner_gradient"] = True
        if not is_rerun and (differentiated := torch_compat.sequence_nr_of_running_node()) is not None:
            node.meta["seq_nr"] = differentiated
