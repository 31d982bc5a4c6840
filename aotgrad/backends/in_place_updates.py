"""Computes new values of inputs in place, in the graphs of the `eager` backend.

    a = aten.add(p, g);  b = aten.mul(a, 2);  copy_(p, b)        becomes        aten.add_(p, g);  aten.mul_(p, 2)

In: a graph that writes to inputs at its end, as that of a training step. Out: a graph with fewer copies and bitwise equal
results. The ops from the old value of an input to the new one must have variants in place, and nothing may read a value
after the next one has taken its place. An op on lists is changed as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.buffer_reuse import fits_buffer
from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_graph
from aotgrad.graph.memory_owners import memory_owners, readers_of_memory, writes_at_end

Location = tuple[fx.Node, str, int]
"""An op, and an argument that its variant in place writes to: the name, and the position if that is a list."""


@dataclass(frozen=True)
class Overwriting:
    """One op of an update: `value` takes the place of `old`."""

    location: Location
    value: fx.Node
    old: fx.Node


def update_in_place(module: fx.GraphModule) -> fx.GraphModule:
    """A graph that updates its inputs in place; the module itself if it has no such updates."""
    updates = updates_of(module.graph)
    if not updates:
        return module
    copies: dict[Any, fx.Node] = {}
    graph = copy_graph(module.graph, copies)
    for write, ops in updates.items():
        graph.erase_node(copies[write])
        for step in ops:
            copies[step.value].replace_all_uses_with(copies[write.args[0]])
    for op in {step.location[0] for ops in updates.values() for step in ops}:
        copies[op].target = op_table.in_place_variant(op.target)
    for node in reversed(graph.nodes):
        if op_table.is_getitem(node.target) and not node.users:
            graph.erase_node(node)
    return fx.GraphModule(module, graph)


def updates_of(graph: fx.Graph) -> Mapping[fx.Node, Sequence[Overwriting]]:
    """Each write that can be left out, and the ops in whose place it is, the first one first."""
    reads = LastReads(graph)
    found = {write: list(overwriting_ops(write, reads)) for write in writes_at_end(graph)}
    updates = {write: ops[::-1] for write, ops in found.items() if ops and ops[-1].old is write.args[0]}
    while True:
        covered = {step.location for ops in updates.values() for step in ops}
        whole = {op for op, *_ in covered if covered.issuperset(written_by(op))}
        kept = {write: ops for write, ops in updates.items() if all(step.location[0] in whole for step in ops)}
        if len(kept) == len(updates):
            return updates
        updates = kept


class LastReads:
    """Where the memory of each value is read last."""

    def __init__(self, graph: fx.Graph) -> None:
        nodes = list(graph.nodes)
        self.position = {node: k for k, node in enumerate(nodes)}
        self.owners = memory_owners(nodes)
        self.readers = readers_of_memory(self.owners)

    def ends_at(self, value: fx.Node, op: fx.Node, ignored: Collection[fx.Node]) -> bool:
        """Whether no node reads a value after an op does, and the op reads it once; `ignored` may."""
        others = (node for node in self.readers.get(value, ()) if node is not op and node not in ignored)
        sharing = [source for source in arguments_of(op) if self.owners[source] is value]
        return sharing == [value] and all(self.position[node] < self.position[op] for node in others)


def overwriting_ops(write: fx.Node, reads: LastReads) -> Iterator[Overwriting]:
    """The ops that lead to a new value of an input, the last one first, as far as they can run in place."""
    target, value = write.args
    assert isinstance(target, fx.Node) and isinstance(value, fx.Node)
    if any(node.op == "output" for node in reads.readers.get(value, ())):
        return
    while value is not target:
        location = computed_at(value)
        old = None if location is None else argument_at(location)
        if location is None or old is None or reads.owners[old] is not old or not fits_buffer(value.meta.get("val"), old):
            return
        if not reads.ends_at(old, location[0], [write]):
            return
        yield Overwriting(location, value, old)
        value = old


def computed_at(value: fx.Node) -> Location | None:
    """The op that computes a value, and the argument that its variant in place would write to."""
    indices: list[Any] = []
    op: Any = value
    while op_table.is_getitem(op.target):
        indices.insert(0, op.args[1])
        op = op.args[0]
    names = op_table.written_in_place(op.target)
    if not names or len(indices) > 2:
        return None
    if len(names) == 1:
        return (op, names[0], indices[0] if indices else 0) if len(indices) < 2 else None
    return (op, names[indices[0]], indices[1]) if len(indices) == 2 else None


def argument_at(location: Location) -> fx.Node | None:
    """The value that an op overwrites."""
    op, name, index = location
    argument = named_arguments(op).get(name)
    found = argument[index] if isinstance(argument, (list, tuple)) else argument
    return found if isinstance(found, fx.Node) else None


def written_by(op: fx.Node) -> Iterator[Location]:
    """All that the variant in place of an op writes to. A fused update writes to gradients only if it unscales them."""
    arguments = named_arguments(op)
    for name in op_table.written_in_place(op.target):
        if name == "grads" and arguments.get("grad_scale") is None:
            continue
        argument = arguments.get(name)
        count = len(argument) if isinstance(argument, (list, tuple)) else 1
        yield from ((op, name, index) for index in range(count))


def named_arguments(op: fx.Node) -> Mapping[str, Any]:
    target: Any = op.target
    return torch_compat.arguments_by_name(target, op.args, op.kwargs)


def arguments_of(op: fx.Node) -> list[fx.Node]:
    """The nodes among the arguments of an op, as often as they occur."""
    found: list[fx.Node] = []
    fx.map_arg((op.args, op.kwargs), found.append)
    return found
