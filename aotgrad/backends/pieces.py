"""Runs a graph in pieces; equal ones are compiled once.

    cut = Cut.of(graph, [NodeGroup([a, b]), NodeGroup([c, d]), NodeGroup([e])]); compile_pieces(module, cut, compile)

In: a graph, groups of its nodes in the order in which they run, and a compiler of graphs. Out: a callable. A node in several
groups is made by the first one, and computed again by the others. Pieces are equal if their ops, arguments and results are.

`uncompiled` keeps what must not be compiled apart; `layers` finds layers that are equal.
"""

from __future__ import annotations

import functools
import itertools
import textwrap
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.boxed_code import boxed_code
from aotgrad.backends.graphs import inserting_behind_inputs
from aotgrad.graph.copies import copy_graph, copy_node
from aotgrad.graph.ends import output_node, outputs_of
from aotgrad.graph.equality import call_key
from aotgrad.graph.geometry import geometry_key, kind
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.graph.symbols import bound_symbol, symbols_of
from aotgrad.ir import BoxedCallable
from aotgrad.telemetry.counters import counters


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a graph that run together, compiled or op by op. They return what is read later, and `unread`."""

    nodes: Sequence[fx.Node]
    is_compiled: bool = True
    unread: frozenset[fx.Node] = frozenset()


@dataclass(frozen=True)
class Piece:
    """A subgraph, the names of the values that it reads and makes, and of those that it reads last.

    What it makes and nobody reads has no name.
    """

    graph: fx.Graph
    is_compiled: bool
    reads: tuple[str, ...]
    makes: tuple[str | None, ...]
    last_reads: tuple[str, ...]
    key: Hashable


@dataclass(frozen=True)
class PieceCall:
    """The call of a piece, `number` among those that differ; otherwise as in `Piece`."""

    number: int
    reads: tuple[str, ...]
    makes: tuple[str | None, ...]
    last_reads: tuple[str, ...]


@dataclass(frozen=True)
class CallSequence:
    """The calls of pieces one after the other. A result is the name of a value, or a constant, which is no text."""

    inputs: tuple[str, ...]
    calls: tuple[PieceCall, ...]
    results: tuple[Any, ...]


@dataclass(frozen=True)
class Cut:
    """A graph in pieces."""

    inputs: tuple[str, ...]
    pieces: tuple[Piece, ...]
    results: tuple[Any, ...]

    @classmethod
    def of(cls, graph: fx.Graph, groups: Sequence[NodeGroup]) -> Cut:
        read_later = set(output_node(graph).all_input_nodes)
        attributes = [node for node in graph.find_nodes(op="get_attr") if node in read_later]
        groups = [*([NodeGroup(attributes, is_compiled=False)] if attributes else []), *groups]
        pieces: list[Piece] = []
        for group, results in reversed(list(zip(groups, results_of_groups(graph, groups), strict=True))):
            makes = [node for node in group.nodes if node in group.unread or node in results]
            reads = values_read(graph, group.nodes)
            piece = piece_of(graph, reads, group.nodes, makes)
            last = names_of(node for node in reads if node not in read_later)
            names = tuple(node.name if node in results else None for node in makes)
            key = (group.is_compiled, *piece_key(piece))
            pieces.append(Piece(piece, group.is_compiled, names_of(reads), names, last, key))
            read_later.update(reads)
        return cls(names_of(graph.find_nodes(op="placeholder")), tuple(reversed(pieces)), tuple(outputs_of(graph)))

    @functools.cached_property
    def distinct(self) -> list[Piece]:
        """The first one of each group of equal pieces."""
        found: dict[Hashable, Piece] = {}
        for piece in self.pieces:
            found.setdefault(piece.key, piece)
        return list(found.values())

    @functools.cached_property
    def sequence(self) -> CallSequence:
        """The calls of the `distinct` pieces."""
        numbers = {piece.key: number for number, piece in enumerate(self.distinct)}
        calls = (PieceCall(numbers[each.key], each.reads, each.makes, each.last_reads) for each in self.pieces)
        results = (each.name if isinstance(each, fx.Node) else each for each in self.results)
        return CallSequence(self.inputs, tuple(calls), tuple(results))


def results_of_groups(graph: fx.Graph, groups: Sequence[NodeGroup]) -> list[list[fx.Node]]:
    """The values of each group that later ones or the graph's output read, if no earlier group has made them."""
    maker: dict[fx.Node, int] = {}
    for k, group in enumerate(groups):
        for node in group.nodes:
            maker.setdefault(node, k)
    read_later = set(output_node(graph).all_input_nodes)
    results: list[list[fx.Node]] = []
    for k, group in reversed(list(enumerate(groups))):
        results.append([node for node in group.nodes if maker[node] == k and node in read_later])
        read_later.update(values_read(graph, group.nodes))
    return results[::-1]


def group_key(graph: fx.Graph, group: NodeGroup) -> Hashable:
    """Equal for groups that compute the same, whatever they return."""
    return group.is_compiled, *piece_key(piece_of(graph, values_read(graph, group.nodes), group.nodes, ()))


def copy_with_sizes(graph: fx.Graph) -> fx.Graph:
    """A copy in which each symbol is a number, so that a piece need not read the input with that size."""
    graph = copy_graph(graph)
    placeholders = graph.find_nodes(op="placeholder")
    known = {bound_symbol(node.meta["val"]) for node in placeholders}
    for node in placeholders:
        value = node.meta["val"]
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if (symbol := bound_symbol(size)) is not None and symbol not in known:
                known.add(symbol)
                with inserting_behind_inputs(graph):
                    number = graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
                number.meta = {"val": size}
    return graph


def names_of(nodes: Iterable[fx.Node]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def values_read(graph: fx.Graph, nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """What some nodes read of others, and the numbers that bind the symbols in its sizes."""
    own = set(nodes)
    read = dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in own)
    inputs = [node for node in read if node.op != "get_attr"]
    return [*inputs, *(number for number in numbers_of_symbols(graph, inputs) if number not in own)]


def piece_of(graph: fx.Graph, reads: Iterable[fx.Node], nodes: Sequence[fx.Node], results: Sequence[fx.Node]) -> fx.Graph:
    """A subgraph of some nodes that returns `results`."""
    piece, copies = fx.Graph(), {}
    for node in reads:
        copies[node] = piece.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    attributes = (each for node in nodes for each in node.all_input_nodes if each.op == "get_attr")
    for node in (*dict.fromkeys(attributes), *nodes):
        copies[node] = copy_node(piece, node, copies.__getitem__)
    piece.output(tuple(copies[node] for node in results))
    return piece


def numbers_of_symbols(graph: fx.Graph, inputs: Sequence[fx.Node]) -> list[fx.Node]:
    """The numbers that bind the symbols in the sizes of inputs; compilers expect them among the inputs."""
    missing = {symbol for node in inputs for symbol in symbols_of(node.meta["val"])}
    missing -= {bound_symbol(node.meta["val"]) for node in inputs}
    if not missing:
        return []
    found = {bound_symbol(node.meta.get("val")): node for node in reversed(graph.nodes) if node.op != "output"}
    return [found[symbol] for symbol in sorted(missing, key=str) if symbol in found]


def piece_key(piece: fx.Graph) -> tuple[Hashable, ...]:
    """Equal for pieces that compute the same with inputs of the same kind."""
    place = {node: k for k, node in enumerate(piece.nodes)}
    inputs = [value_key(node) for node in piece.find_nodes(op="placeholder")]
    calls = [call_key(node, place.__getitem__) or object() for node in piece.nodes if node.op != "placeholder"]
    return (*inputs, *calls)


def value_key(node: fx.Node) -> Hashable:
    """Equal for values of the same kind, sizes and strides. Symbolic numbers are compared by their expressions."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return torch_compat.expression_of(value) if torch_compat.has_symbols(value) else type(value)
    return geometry_key(value) or (value.layout, *kind(value), *map(torch_compat.expression_of, value.size()))


def compile_pieces(module: fx.GraphModule, cut: Cut, compile_piece: Callable[[fx.GraphModule], Callable]) -> BoxedCallable:
    """A callable that runs the pieces of a cut and frees each value after the last piece that reads it.

    Args:
        module: the graph that was cut; pieces may read its attributes.
        compile_piece: keeps the strides of all results of a piece.
    """
    compiled: list[Callable] = []
    for piece in cut.distinct:
        compiler = compile_piece if piece.is_compiled else boxed_code
        compiled.append(compiler(LazyGraphModule(module, piece.graph)))
    counters["shared_pieces"] += len(cut.pieces) - len(compiled)
    return caller_of(cut.sequence, compiled)


def caller_of(sequence: CallSequence, pieces: Sequence[Callable]) -> BoxedCallable:
    """A function that calls pieces one after the other. Each value is a variable until it is read last."""
    names = itertools.chain(sequence.inputs, *(call.makes for call in sequence.calls))
    variable = {name: f"value_{k}" for k, name in enumerate(names)} | {None: "unread"}

    def variables(names: Iterable[str | None]) -> str:
        return "".join(f"{variable[name]}, " for name in names)

    lines = [f"{variables(sequence.inputs)}= args" if sequence.inputs else "", "args.clear()"]
    for call in sequence.calls:
        lines.append(f"given = [{variables(call.reads)}]")
        lines.append(f"del {variables(call.last_reads)}" if call.last_reads else "")
        run_piece = f"piece_{int(call.number)}(given)"
        lines.append(f"{variables(call.makes)}= {run_piece}" if call.makes else run_piece)
        lines.append("del unread" if None in call.makes else "")
    results = [variable[each] if isinstance(each, str) else f"result_{k}" for k, each in enumerate(sequence.results)]
    lines.append(f"return ({''.join(f'{result}, ' for result in results)})")
    constants = {f"result_{k}": each for k, each in enumerate(sequence.results) if not isinstance(each, str)}
    namespace: dict[str, Any] = {**constants, **{f"piece_{k}": piece for k, piece in enumerate(pieces)}}
    source = "def run(args):\n" + textwrap.indent("\n".join(lines), "    ")
    exec(compile(source, "<aotgrad pieces>", "exec"), namespace)
    run = namespace["run"]
    run._boxed_call = True
    return run
