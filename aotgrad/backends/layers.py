"""Finds the layers of a model in its graph, so that equal ones are compiled once.

    a = mm(x, w1); b = tanh(a); c = mm(b, w2); d = tanh(c); e = sum(d)          pieces: [a, b], [c, d] equal; [e]

In: a graph. Out: a cut into pieces, or `None` if no layers are equal. A layer is a block of ops that is there several times.
It begins where the fewest bytes flow from one to the next, and small ones share a piece.

What a piece reads of earlier ones takes memory, so views are made again, and cheap values, too, if what they are computed
of is there anyway. Inputs are written by the last piece that reads them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.pieces import Cut, NodeGroup, Piece, copy_with_sizes, group_key, results_of_groups, value_key
from aotgrad.graph import op_table
from aotgrad.graph.equality import call_key
from aotgrad.graph.geometry import bytes_of_value
from aotgrad.graph.memory_owners import memory_owner, viewed_node, writes_at_end
from aotgrad.graph.repeats import Repeat, find_repeats

LEAST = 8
"""The fewest nodes of a layer."""

ENOUGH_WORK = 60
"""From so much on, the layers of a piece take much longer than the call of it; smaller ones share a piece. See `work_of`."""

LEAST_OF_PART = 64
"""The fewest nodes of a part of a block: ops of different parts do not fuse."""

SHARE_OF_UNREAD = 0.25
"""The most bytes that a piece writes for nobody, as a share of its results, to be equal to another one."""

BYTES_LIKE_AN_OP = 2**14
"""So many bytes of results take as long as the call of an op."""


def cut_layers(graph: fx.Graph) -> Cut | None:
    """A cut with equal pieces, if there are any."""
    cut = cut_where(graph, lambda layers: [border for repeat in layers.repeats for border in layers.borders(repeat)])
    return cut if cut is not None and saves_enough(cut.pieces) else None


def cut_where(graph: fx.Graph, borders: Callable[[Layers], Sequence[int]]) -> Cut | None:
    """A cut at some borders; `None` if there are none, or the graph cannot be cut."""
    if not all(map(may_be_in_pieces, graph.nodes)) or has_writes_inside(graph):
        return None
    graph = copy_with_sizes(graph)
    remove_profiler_ops(graph)
    layers = Layers.of(graph)
    if not (chosen := borders(layers)):
        return None
    cut = layers.cut_at(chosen)
    inputs = (node for piece in cut.pieces for node in piece.graph.find_nodes(op="placeholder"))
    return cut if all(map(may_be_an_input, inputs)) else None


def saves_enough(pieces: Sequence[Piece]) -> bool:
    """Whether a quarter of the nodes need not be compiled."""
    sizes = {piece.key: len(piece.graph.nodes) for piece in pieces}
    return 4 * sum(sizes.values()) <= 3 * sum(len(piece.graph.nodes) for piece in pieces)


def remove_profiler_ops(graph: fx.Graph) -> None:
    """Remove what only tells the profiler where a part begins and ends: Inductor does, and the parts are in other pieces."""
    for node in reversed(graph.nodes):
        if op_table.op_name(node.target).startswith("profiler.") and not node.users:
            graph.erase_node(node)


def may_be_an_input(node: fx.Node) -> bool:
    """Whether Inductor takes a value of this kind: tensors and sizes, but no objects and floats."""
    return isinstance(node.meta.get("val"), (torch.Tensor, torch.SymInt, int))


def may_be_in_pieces(node: fx.Node) -> bool:
    """Whether a graph with this node may be cut anywhere. Communication and copies to the host overlap with other layers."""
    values = op_table.items_of(node.meta.get("val"))
    unknown = any(isinstance(value, torch.Tensor) and torch_compat.has_unknown_sizes(value) for value in values)
    return not (unknown or op_table.communicates(node.target) or op_table.is_host_copy(node.target))


def has_writes_inside(graph: fx.Graph) -> bool:
    """Whether a graph writes in place before its end."""
    at_end = set(writes_at_end(graph))
    return any(op_table.writes(node.target) and node not in at_end for node in graph.nodes)


@dataclass(frozen=True)
class Layers:
    """The ops of a graph in order, and the repeats among them, without those that have another place."""

    graph: fx.Graph
    ops: Sequence[fx.Node]
    repeats: Sequence[Repeat]

    @classmethod
    def of(cls, graph: fx.Graph) -> Layers:
        apart = {*writes_at_end(graph), *seed_lookups(graph), *sizes_of_inputs(graph)}
        ops = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output") and node not in apart]
        labels = [(call_key(op, value_key) or object(), value_key(op)) for op in ops]
        return cls(graph, ops, [each for each in find_repeats(labels, LEAST) if is_layer(ops, each)])

    def cut_at(self, borders: Iterable[int]) -> Cut:
        """The graph in pieces that begin at these ops."""
        ends = itertools.pairwise(sorted({0, len(self.ops), *borders}))
        own = [sizes_of_inputs(self.graph), *(list(self.ops[slice(*each)]) for each in ends)]
        home = {op: k for k, ops in enumerate(own) for op in ops}
        for lookup in seed_lookups(self.graph):
            home[lookup] = home.get(lookup.all_input_nodes[0], 1)
            own[home[lookup]].append(lookup)
        readers, place = groups_reading(own), {node: k for k, node in enumerate(self.graph.nodes)}
        again = (computed_again(ops, k, home, readers) for k, ops in enumerate(own))
        groups = [sorted(again_of.union(ops), key=place.__getitem__) for ops, again_of in zip(own, again, strict=True)]
        write_early(reversed(writes_at_end(self.graph)), groups, home)
        cut = [NodeGroup(nodes, is_compiled=k > 0) for k, nodes in enumerate(groups) if nodes]
        return Cut.of(self.graph, with_equal_results(self.graph, cut))

    def borders(self, repeat: Repeat) -> list[int]:
        """Where the blocks of a repeat begin and end: where the fewest bytes flow from one to the next. Empty: nowhere.

        A block may be several layers that differ, so it is cut inside, too, where as few bytes flow.
        """
        starts = range(repeat.start, repeat.start + repeat.slack + 1)
        least, start = min((self.bytes_across(start + repeat.period, repeat.period), start) for start in starts)
        if math.isinf(least):
            return []
        size = math.ceil(ENOUGH_WORK / self.work_between(start, start + repeat.period))
        if size > 1:
            size = min(size, repeat.count) * repeat.period
            return list(range(start, start + repeat.count * repeat.period + 1, size))
        parts = [start, *self.inner_borders(start, start + repeat.period, least)]
        return [border for part in parts for border in same_places(part, repeat)]

    def inner_borders(self, start: int, stop: int, least: float) -> list[int]:
        """Where a block is cut inside: across each border, no more bytes flow than out of the block."""
        places = range(start + LEAST_OF_PART, stop - LEAST_OF_PART + 1)
        middle = (start + stop) / 2
        inside = [place for place in places if self.bytes_across(place, stop - start) <= least]
        works = {place: min(self.work_between(start, place), self.work_between(place, stop)) for place in inside}
        enough = [place for place, work in works.items() if work >= ENOUGH_WORK]
        if not enough:
            return []
        place = min(enough, key=lambda place: abs(place - middle))
        return [*self.inner_borders(start, place, least), place, *self.inner_borders(place, stop, least)]

    def work_between(self, start: int, stop: int) -> float:
        return sum(map(work_of, self.ops[start:stop]))

    def bytes_across(self, border: int, period: int) -> float:
        """The bytes that flow across the border of two blocks; infinite if an op and its items would be apart."""
        behind = set(self.ops[border : border + period])
        crossing = [op for op in self.ops[max(border - period, 0) : border] if not behind.isdisjoint(op.users)]
        if any(op_table.is_tuple_value(op) for op in crossing):
            return math.inf
        return sum(bytes_of_value(op) for op in {memory_owner(op) for op in crossing})


def same_places(border: int, repeat: Repeat) -> range:
    """The places of a border in all blocks of a repeat, and in the parts of a block around them that are equal, too."""
    first = repeat.start + (border - repeat.start) % repeat.period
    return range(first, repeat.stop + 1, repeat.period)


def with_equal_results(graph: fx.Graph, groups: Sequence[NodeGroup]) -> list[NodeGroup]:
    """Groups of which those that compute the same return the same, too: what is read of any of them.

    Not the same values are saved of all layers: one may be computed from what is saved of the next layer. A group does not
    return others' results if they are a large part of its own.
    """
    wanted: dict[Hashable, set[int]] = {}
    bodies = [group_key(graph, group) for group in groups]
    for body, group, results in zip(bodies, groups, results_of_groups(graph, groups), strict=True):
        wanted.setdefault(body, set()).update(map(group.nodes.index, results))
    found = []
    for body, group, results in zip(bodies, groups, results_of_groups(graph, groups), strict=True):
        unread = [group.nodes[k] for k in sorted(wanted[body]) if group.nodes[k] not in results]
        is_much = sum(map(bytes_of_value, unread)) > SHARE_OF_UNREAD * sum(map(bytes_of_value, results))
        found.append(group if is_much else replace(group, unread=frozenset(unread)))
    return found


def is_layer(ops: Sequence[fx.Node], repeat: Repeat) -> bool:
    """Whether the blocks of a repeat compute more than numbers."""
    return any(map(computes_elements, ops[repeat.start : repeat.start + repeat.period]))


def computes_elements(op: fx.Node) -> bool:
    """Whether an op computes a tensor of several elements."""
    values = op_table.items_of(op.meta.get("val"))
    is_part = op_table.is_getitem(op.target) or op_table.is_view(op.target)
    return not is_part and any(isinstance(value, torch.Tensor) and value.dim() > 0 for value in values)


def work_of(op: fx.Node) -> float:
    """How long an op takes: one for each that computes elements, and more for large results."""
    return 1 + bytes_of_value(op) / BYTES_LIKE_AN_OP if computes_elements(op) else 0


def seed_lookups(graph: fx.Graph) -> list[fx.Node]:
    """The reads of seeds: each layer reads another one, so they are not in the layers."""
    return [node for node in graph.nodes if op_table.op_name(node.target) == "prims.inductor_lookup_seed"]


def sizes_of_inputs(graph: fx.Graph) -> list[fx.Node]:
    """The reads of sizes of inputs, which all pieces may need."""
    return [node for node in graph.nodes if op_table.reads_size(node.target) and node.all_input_nodes[0].op == "placeholder"]


def groups_reading(groups: Sequence[Sequence[fx.Node]]) -> dict[fx.Node, set[int]]:
    """The groups that read each value or views of it, by the owner of its memory."""
    readers: dict[fx.Node, set[int]] = {}
    for k, ops in enumerate(groups):
        for op in ops:
            if viewed_node(op) is None:
                for value in op.all_input_nodes:
                    readers.setdefault(memory_owner(value), set()).add(k)
    return readers


def computed_again(
    ops: Sequence[fx.Node], group: int, home: Mapping[fx.Node, int], readers: Mapping[fx.Node, set[int]]
) -> set[fx.Node]:
    """The values of earlier groups that a group computes again: views, and what takes no other memory than is there.

    A value that several later groups read is kept, since each of them would compute it.
    """
    read = dict.fromkeys(value for op in ops for value in op.all_input_nodes if home.get(value, group) < group)
    again = {view for value in read for view in views_of_memory(value)}
    owners = [owner for owner in dict.fromkeys(map(memory_owner, read)) if owner in home]
    several = {owner for owner in owners if len(readers.get(owner, set()) - {home[owner]}) > 1}
    kept = several.union(ops, (owner for owner in owners if not may_be_made_again(owner)))
    for owner in owners:
        if (made := cheap_ops_for(owner, kept, home)) is None:
            kept.add(owner)
        else:
            again |= made
    return again


def views_of_memory(value: fx.Node) -> Iterator[fx.Node]:
    """The views between a value and the owner of its memory, with the value if it is one."""
    while (viewed := viewed_node(value)) is not None:
        yield value
        value = viewed


def may_be_made_again(node: fx.Node) -> bool:
    """Whether a value may be computed again. Uninitialized memory would have other contents."""
    return op_table.is_cheap(node.target) and not op_table.is_uninitialized(node.target)


def cheap_ops_for(value: fx.Node, kept: Collection[fx.Node], home: Mapping[fx.Node, int]) -> set[fx.Node] | None:
    """The cheap ops that compute a value of inputs and of values that are kept; `None` if others are needed, too."""
    needed: set[fx.Node] = set()
    pending = [value]
    while pending:
        op = pending.pop()
        if op in needed or op in kept or op not in home:
            continue
        if viewed_node(op) is None and not may_be_made_again(op):
            return None
        needed.add(op)
        pending += op.all_input_nodes
    return needed


def write_early(writes: Iterable[fx.Node], groups: Sequence[list[fx.Node]], home: Mapping[fx.Node, int]) -> None:
    """Let the last group that reads an input write it, once its new value is computed."""
    last = {value: k for k, nodes in enumerate(groups) for node in nodes for value in node.all_input_nodes}
    for write in writes:
        target, source = write.all_input_nodes
        group = max(last.get(target, 1), home.get(memory_owner(source), 1))
        views = [view for view in views_of_memory(source) if view not in groups[group]]
        groups[group].extend([*reversed(views), write])
        last[memory_owner(source)] = max(last.get(memory_owner(source), 0), group)
