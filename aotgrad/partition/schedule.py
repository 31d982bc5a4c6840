"""The order in which the backward starts its collectives and waits for them.

In: nodes in an order in which they may run. Out: the same nodes in another order.

    g1 = mm(...); r1 = all_reduce(g1); w1 = wait_tensor(r1); g2 = mm(...); h = mul(w1, 2)
    g1;           r1;                                        g2;           w1; h

A collective overlaps with other work between its start and its wait. So each starts as soon as its inputs are ready, and
its wait runs just before its result is read. Collectives keep their order, since all ranks must start them in the same
order (https://github.com/pytorch/pytorch/pull/114120 also moves the start).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch.fx as fx

from aotgrad.graph import op_table


def collectives_first(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The nodes with collectives as early and waits as late as their data dependences allow."""
    return list(_Schedule(nodes).run())


class _Schedule:
    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        self.nodes = nodes
        self.left = set(nodes)
        self.collectives = [node for node in nodes if op_table.is_collective(node.target)]

    def run(self) -> Iterator[fx.Node]:
        waits = [node for node in self.nodes if op_table.is_wait(node.target)]
        own = {*waits, *self.collectives}
        yield from self._ready_collectives()
        for node in self.nodes:
            if node not in own:
                yield from self._with_waits(node)
                yield from self._ready_collectives()
        for node in waits:
            yield from self._with_waits(node)

    def _with_waits(self, node: fx.Node) -> Iterator[fx.Node]:
        """A node that is due, after the waits that it needs and that did not run yet."""
        if node in self.left:
            for arg in node.all_input_nodes:
                yield from self._with_waits(arg)
            self.left.discard(node)
            yield node

    def _ready_collectives(self) -> Iterator[fx.Node]:
        while self.collectives and self._is_ready(self.collectives[0]):
            yield from self._with_waits(self.collectives.pop(0))

    def _is_ready(self, node: fx.Node) -> bool:
        """Whether all inputs ran, or are waits of collectives that were started."""
        return all(
            arg not in self.left or (op_table.is_wait(arg.target) and self._is_ready(arg)) for arg in node.all_input_nodes
        )
