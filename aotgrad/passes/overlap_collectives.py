"""Starts collectives earlier and waits for them at other places, so that they overlap with computations.

r = all_reduce(g); w = wait(r); h = mm(a, b); s = all_gather(p); v = wait(s); y = mm(h, v)
r = all_reduce(g); s = all_gather(p); h = mm(a, b); v = wait(s); y = mm(h, v); w = wait(r)

It runs on the halves: `options={"forward_passes": [OverlapCollectives()], "backward_passes": [OverlapCollectives()]}`. An
all-gather of a parameter is prefetched; the wait for a reduce-scatter of a gradient moves to the end. `message_order`
decides, by estimated times. Collectives keep their order, and computations theirs: ranks with other estimates still agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx
from torch.utils.flop_counter import flop_registry

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.ends import output_node
from aotgrad.graph.geometry import bytes_of_value
from aotgrad.graph.link_schedule import Computation, Link, LinkOp, Occupation, Start, Wait, simulate_link
from aotgrad.graph.message_order import Message, order_of_actions
from aotgrad.passes.base import AnyGraph
from aotgrad.passes.late_waits import is_only_awaited

USUAL_LINK = Link(bandwidth=5e10, latency=2e-5)


@dataclass(frozen=True)
class OverlapCollectives:
    """Overlaps collectives with computations while those in flight hold at most `max_bytes`.

    Attributes:
        link: the link between the ranks.
        bytes_per_second: how fast a device reads and writes its memory.
        flops_per_second: how fast it multiplies.
    """

    max_bytes: int = 2**30
    link: Link = USUAL_LINK
    bytes_per_second: float = 1e12
    flops_per_second: float = 1e14
    name: str = "overlap_collectives"

    def moves(self, node: fx.Node) -> bool:
        """Whether the node starts a message that this pass moves."""
        return op_table.is_collective(node.target)

    def apply(self, graph: AnyGraph) -> AnyGraph:
        parts = Parts.of(graph.module.graph, self.moves)
        if parts.messages:
            seconds = [self.seconds(node) for node in parts.computations]
            actions = order_of_actions(seconds, self.messages(parts, seconds), self.max_bytes)
            output = output_node(graph.module.graph)
            for node in parts.nodes_of(actions):
                output.prepend(node)
        return graph

    def messages(self, parts: Parts, seconds: Sequence[float]) -> list[Message]:
        """The messages as `message_order` takes them. `seconds`: the times of the computations."""
        return [self.message(parts, each) for each in parts.messages]

    def message(self, parts: Parts, collective: Collective) -> Message:
        operands = [node for node in collective.start.all_input_nodes if node.op != "placeholder"]
        held = sum(map(bytes_of_value, [collective.start, *operands]))
        return Message(self.link.seconds(message_bytes(collective.start)), held, *parts.places(collective))

    def seconds(self, node: fx.Node) -> float:
        """The estimated time of a computation."""
        if node.op != "call_function" or op_table.is_view(node.target) or op_table.is_getitem(node.target):
            return 0.0
        moved = sum(map(bytes_of_value, [node, *node.all_input_nodes]))
        return max(moved / self.bytes_per_second, multiplications(node) / self.flops_per_second)

    def timeline(self, graph: fx.Graph) -> list[Occupation]:
        """When each op of a graph runs in the simulation, see `link_schedule`."""
        return simulate_link(self.link_ops(graph), self.link)

    def link_ops(self, graph: fx.Graph) -> Iterator[LinkOp]:
        for node in graph.nodes:
            if op_table.starts_message(node.target):
                yield Start(node.name, message_bytes(node))
            elif op_table.is_wait(node.target) and (start := started_by(node)) is not None:
                yield Wait(start.name)
            elif (seconds := self.seconds(node)) > 0:
                yield Computation(node.name, seconds)


@dataclass(frozen=True)
class Collective:
    """A collective that may move: `start`, with `views` of its operands before it and `items` after it; and its `waits`."""

    views: tuple[fx.Node, ...]
    start: fx.Node
    items: tuple[fx.Node, ...]
    waits: tuple[fx.Node, ...]

    @classmethod
    def of(cls, start: fx.Node) -> Collective | None:
        """`None` if something other than a wait reads the result, or nothing waits for it."""
        items = tuple(user for user in start.users if op_table.is_getitem(user.target))
        if not all(map(is_only_awaited, items or (start,))):
            return None
        waits: dict[fx.Node, None] = {}
        stack = [user for node in items or (start,) for user in node.users]
        while stack:
            node = stack.pop(0)
            waits[node] = None
            stack += [user for user in node.users if op_table.is_wait(user.target)]
        return cls(tuple(own_views(start)), start, items, tuple(waits)) if waits else None

    @property
    def all_nodes(self) -> tuple[fx.Node, ...]:
        return (*self.views, self.start, *self.items, *self.waits)


@dataclass(frozen=True)
class Parts:
    """The nodes of a graph: computations, which keep their order, and the collectives that move among them.

    `number_of`: the collective that a node belongs to. `place`: the number of computations before each node.
    """

    computations: Sequence[fx.Node]
    messages: Sequence[Collective]
    number_of: Mapping[fx.Node, int]
    place: Mapping[fx.Node, int]

    @classmethod
    def of(cls, graph: fx.Graph, moves: Callable[[fx.Node], bool]) -> Parts:
        """The parts of a graph if the nodes that `moves` names start messages."""
        nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
        found = [Collective.of(node) for node in nodes if moves(node)]
        messages = [collective for collective in found if collective is not None]
        number_of = {node: k for k, collective in enumerate(messages) for node in collective.all_nodes}
        computations, place = [], {}
        for node in nodes:
            place[node] = len(computations)
            if node not in number_of:
                computations.append(node)
        return cls(computations, messages, number_of, place)

    def places(self, collective: Collective) -> tuple[int, int, int, tuple[int, ...]]:
        """The fields `ready`, `place`, `read` and `after` of its message."""
        begun = (*collective.views, collective.start)
        sources = [arg for node in begun for arg in node.all_input_nodes if arg not in begun and arg in self.place]
        after = {self.number_of[arg] for arg in sources if arg in self.number_of}
        here = self.place[collective.start]
        ready = [self.place[arg] + 1 for arg in sources if arg not in self.number_of]
        ready += [k + 1 for k, node in enumerate(self.computations[:here]) if is_barrier(node)]
        readers = (user for wait in collective.waits for user in wait.users)
        read = [self.place[user] for user in readers if user in self.place and user not in self.number_of]
        return max(ready, default=0), here, min(read, default=len(self.computations)), tuple(sorted(after))

    def nodes_of(self, actions: Sequence[tuple[str, int]]) -> Iterator[fx.Node]:
        for action, k in actions:
            if action == "compute":
                yield self.computations[k]
            elif action == "start":
                yield from (*self.messages[k].views, self.messages[k].start, *self.messages[k].items)
            else:
                yield from self.messages[k].waits


def own_views(start: fx.Node) -> list[fx.Node]:
    """The views and casts of operands that only the collective reads, in order: they move with it."""
    found: list[fx.Node] = []
    stack = list(start.all_input_nodes)
    while stack:
        node = stack.pop()
        is_small = op_table.is_view(node.target) or op_table.op_name(node.target) == "aten._to_copy"
        if node.op == "call_function" and is_small and list(node.users) in ([start], found[-1:]):
            found.append(node)
            stack += node.all_input_nodes
    return found[::-1]


def is_barrier(node: fx.Node) -> bool:
    """Whether no collective may move to before the node."""
    return node.op == "call_function" and op_table.has_effect(node.target)


def started_by(wait: fx.Node) -> fx.Node | None:
    """The collective or the copy that a wait waits for."""
    node = wait
    while op_table.is_wait(node.target) or op_table.is_getitem(node.target):
        node = node.all_input_nodes[0]
    return node if op_table.starts_message(node.target) else None


def message_bytes(start: fx.Node) -> int:
    """The bytes of the operands or of the results, whichever are more."""
    return max(bytes_of_value(start), sum(map(bytes_of_value, start.all_input_nodes)))


def multiplications(node: fx.Node) -> int:
    """Floating point operations of a product; 0 for other ops, and for sizes that depend on values."""
    formula = flop_registry.get(getattr(node.target, "overloadpacket", node.target))
    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    tensors = all(isinstance(value, torch.Tensor) and not torch_compat.has_unknown_sizes(value) for value in values)
    if formula is None or not tensors:
        return 0
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: shape_of(arg.meta["val"]))
    return int(formula(*args, **kwargs, out_val=shape_of(node.meta["val"])))


def shape_of(value: Any) -> tuple[int, ...]:
    return tuple(torch_compat.hints(value.size()))
