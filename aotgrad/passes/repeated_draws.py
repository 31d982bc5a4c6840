"""Random ops that draw numbers which another one has drawn: both have one number in `meta["draw"]`.

mask = bernoulli(x); again = bernoulli(x); y = x * again     ->     mask = bernoulli(x); y = x * mask

A trace of a checkpointed region has them. Equal calls are one by now, see `common_subexpressions`. So are those that read
the size of their argument only. Others run again, from the state that the generator had before the first one:

mask = bernoulli(x); again = bernoulli(z)     ->     state, mask = run_and_save_rng_state(bernoulli, x)
                                                     again = run_with_rng_state(state, bernoulli, z)
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
from aotgrad.passes.base import AnyGraph


@dataclass(frozen=True)
class RemoveRepeatedDraws:
    """Leaves one op for each draw, or lets others start from its state."""

    name: str = "repeated draws"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        """`graph` where no numbers are drawn anew that were drawn.

        Raises:
            CaptureError: one draws the same numbers in another way.
        """
        drawn: dict[int, Draw] = {}
        for node in graph.module.graph.nodes:
            number = node.meta.get("draw")
            if number is None or (first := drawn.setdefault(number, Draw(node))).node is node:
                continue
            if node.users:
                first.repeat(node)
            graph.module.graph.erase_node(node)
        return graph


@dataclass
class Draw:
    """A random op; `state`: that of the generator before it, once it is recorded."""

    node: fx.Node
    state: fx.Node | None = field(default=None)

    def repeat(self, node: fx.Node) -> None:
        """Replace another op that draws the same numbers.

        Raises:
            CaptureError: it draws them in another way.
        """
        if node.target is not self.node.target or draw_signature(node) != draw_signature(self.node):
            raise CaptureError(
                f"{node.target} runs again, from the state that the random generator had before, and draws in another way "
                "than the op before; set the state outside of the compiled function"
            )
        if self.state is None and op_table.draws_by_size(node.target):
            node.replace_all_uses_with(self.node)
            return
        state = self.recorded()
        with node.graph.inserting_before(node):
            args: Any = (state, node.target, *node.args)
            again = node.graph.call_function(torch_compat.run_with_rng_state, args, dict(node.kwargs))
        again.meta = {key: value for key, value in node.meta.items() if key != "draw"}
        node.replace_all_uses_with(again)

    def recorded(self) -> fx.Node:
        """The state before this op, which hands it out from now on."""
        if self.state is not None:
            return self.state
        graph, node = self.node.graph, self.node
        value = fake_random_state(node)
        with graph.inserting_after(node):
            args: Any = (node.target, *node.args)
            both = graph.call_function(torch_compat.run_and_save_rng_state, args, dict(node.kwargs))
        with graph.inserting_after(both):
            result = graph.call_function(operator.getitem, (both, 1))
        with graph.inserting_after(both):
            self.state = graph.call_function(operator.getitem, (both, 0))
        both.meta = {**node.meta, "val": (value, node.meta["val"])}
        result.meta, self.state.meta = dict(node.meta), {"val": value}
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        self.node = result
        return self.state


def draw_signature(node: fx.Node) -> Any:
    """What a random op draws, without the values that it reads."""

    def of_argument(value: Any) -> Any:
        value = value.meta.get("val") if isinstance(value, fx.Node) else value
        return (value.size(), value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value

    return pytree.tree_map(of_argument, (node.args, dict(node.kwargs)))


def fake_random_state(node: fx.Node) -> torch.Tensor:
    """A state of the generator that an op draws from, fake as its result is: bytes in CPU memory."""
    like = next(value for value in pytree.tree_leaves(node.meta["val"]) if isinstance(value, torch.Tensor))
    with getattr(like, "fake_mode", contextlib.nullcontext()):
        return torch.empty(torch_compat.RANDOM_STATE_BYTES.get(like.device.type, 0), dtype=torch.uint8)
