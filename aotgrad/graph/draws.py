"""Random ops that draw the same numbers as an earlier one of the graph: the state of the generator is recorded before that.

mask = bernoulli(x); again = bernoulli(z)     ->     state, mask = draw_and_record(bernoulli, x)
                                                     again = draw_again(state, bernoulli, z)
"""

from __future__ import annotations

import contextlib
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.graph import op_table


@dataclass
class RepeatedDraw:
    """A random op. `state`: the node of the generator's state before it, once that is recorded."""

    node: fx.Node
    state: fx.Node | None = field(default=None)

    def repeat(self, node: fx.Node) -> fx.Node:
        """Replace the uses of another op, which draws the same numbers; returns what they read now.

        Raises:
            CaptureError: it draws something else.
        """
        if node.target is not self.node.target or draw_signature(node) != draw_signature(self.node):
            raise CaptureError(
                f"{node.target} starts from a state of the random generator that another op has used, and draws in another "
                "way than that op; set the state outside of the compiled function"
            )
        if self.state is None and op_table.draws_by_size(node.target):
            node.replace_all_uses_with(self.node)
            return self.node
        state = self.record_state()
        with node.graph.inserting_before(node):
            args: Any = (state, node.target, *node.args)
            again = node.graph.call_function(torch_compat.draw_again, args, dict(node.kwargs))
        again.meta = {key: value for key, value in node.meta.items() if key != "draw"}
        node.replace_all_uses_with(again)
        return again

    def record_state(self) -> fx.Node:
        """The node of the state before this op. The op is replaced by one that also returns the state."""
        if self.state is None:
            self.node, self.state = record_draw(self.node)
        return self.state


def record_draw(node: fx.Node, names: tuple[str | None, str | None] = (None, None)) -> tuple[fx.Node, fx.Node]:
    """Replace a random op by one that also returns the state before it; returns the op's result and the state, so named."""
    graph, value = node.graph, fake_random_state(node)
    with graph.inserting_after(node):
        args: Any = (node.target, *node.args)
        both = graph.call_function(torch_compat.draw_and_record, args, dict(node.kwargs))
    with graph.inserting_after(both):
        result = graph.create_node("call_function", operator.getitem, (both, 1), name=names[0])
    with graph.inserting_after(both):
        state = graph.create_node("call_function", operator.getitem, (both, 0), name=names[1])
    both.meta = {**node.meta, "val": (value, node.meta["val"])}
    result.meta, state.meta = dict(node.meta), {"val": value}
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    return result, state


def draw_signature(node: fx.Node) -> Any:
    """What a random op draws: its arguments, with the type of each tensor in place of the tensor."""

    def of_argument(value: Any) -> Any:
        value = value.meta.get("val") if isinstance(value, fx.Node) else value
        return (value.size(), value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value

    return pytree.tree_map(of_argument, (node.args, dict(node.kwargs)))


def fake_random_state(node: fx.Node) -> torch.Tensor:
    """A fake state of the generator that an op draws from: bytes in CPU memory."""
    like = next(value for value in pytree.tree_leaves(node.meta["val"]) if isinstance(value, torch.Tensor))
    with getattr(like, "fake_mode", contextlib.nullcontext()):
        return torch.empty(torch_compat.RANDOM_STATE_BYTES.get(like.device.type, 0), dtype=torch.uint8, device="cpu")
