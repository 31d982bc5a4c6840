"""Cuts a graph into pieces, so that a compiler only gets ops that it can compile.

In: a graph, and a compiler of graphs. Out: a callable that runs the pieces in order, some compiled, others op by op.

    a = mul(x, 2); s = to_sparse(a); t = mul(s, 3); b = mm(t, a); c = sin(b)
    pieces: [a] compiled; [s, t, b] not compiled; [c] compiled

Not compiled are:
- sparse values: Inductor treats them as dense, with the strides that the trace made up.
- values computed from `values()` or `indices()` of a sparse tensor: the trace does not know their number.
- ops without a shape function, such as `linalg.lstsq`: Inductor would need their sizes, which depend on data.
- writes into a view of a complex tensor: Inductor makes them in place, and moves reads of the tensor before them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.eager import boxed_code
from aotgrad.backends.graphs import inserting_behind_inputs
from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_graph, copy_node
from aotgrad.graph.ends import output_node, outputs_of
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.graph.symbols import bound_symbol, symbols_of
from aotgrad.ir import BoxedCallable


@dataclass(frozen=True)
class Piece:
    """A callable, the names of the values it reads and makes, and of those that it reads last."""

    call: Callable
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    last_reads: tuple[str, ...]


def must_be_cut(graph: fx.Graph) -> bool:
    """Whether a graph has ops that must not be compiled."""
    return any(is_sparse(node) or is_left_whole(node) for node in graph.nodes)


def is_left_whole(node: fx.Node) -> bool:
    """Whether a dense node is not compiled."""
    return is_sized_by_values(node) or is_complex_scatter(node)


def is_sized_by_values(node: fx.Node) -> bool:
    """Whether a node is an op without a shape function, or one of its results."""
    op = node.all_input_nodes[0].target if op_table.is_getitem(node.target) else node.target
    return torch_compat.READS_VALUES.get(op) is torch_compat.Read.SIZES


def is_complex_scatter(node: fx.Node) -> bool:
    """Whether a node writes into a view of a complex tensor."""
    value = node.meta.get("val")
    is_scatter = node.op == "call_function" and op_table.short_name(node.target) in VIEW_SCATTERS
    return is_scatter and isinstance(value, torch.Tensor) and value.is_complex()


VIEW_SCATTERS = ("as_strided_scatter", "diagonal_scatter", "select_scatter", "slice_scatter")


def is_sparse(node: fx.Node) -> bool:
    values = op_table.items_of(node.meta.get("val"))
    return any(isinstance(value, torch.Tensor) and value.layout is not torch.strided for value in values)


def uncompiled_nodes(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that are not compiled: those left whole, those with sparse values, and what depends on parts of these."""
    from_parts: set[fx.Node] = set()
    for node in graph.nodes:
        is_part = op_table.short_name(node.target) in torch_compat.PARTS_OF_SPARSE
        if node.op != "output" and (is_part or any(each in from_parts for each in node.all_input_nodes)):
            from_parts.add(node)
    from_parts.update(filter(is_left_whole, graph.nodes))
    return from_parts.union(node for node in graph.nodes if any(map(is_sparse, (node, *node.all_input_nodes))))


def compile_in_pieces(module: fx.GraphModule, compile_dense: Callable[[fx.GraphModule], Callable]) -> BoxedCallable:
    """Compile the dense pieces of a graph; `compile_dense` keeps the strides of all results of a piece."""
    graph = copy_graph(module.graph)
    read_sizes(graph)
    stages = stages_of(graph)
    groups = [[node for node in stages if stages[node] == stage] for stage in sorted(set(stages.values()))]
    read_later = {node.name for node in output_node(graph).all_input_nodes}
    pieces: list[Piece] = []
    for nodes in reversed(groups):
        makes = [node for node in nodes if node.name in read_later]
        piece = piece_of(graph, nodes, makes)
        compiler = boxed_code if stages[nodes[0]] % 2 else compile_dense
        reads = names_of(piece.find_nodes(op="placeholder"))
        last = tuple(name for name in reads if name not in read_later)
        pieces.append(Piece(compiler(LazyGraphModule(module, piece)), reads, names_of(makes), last))
        read_later.update(reads)
    return run_in_order(names_of(graph.find_nodes(op="placeholder")), pieces[::-1], outputs_of(graph))


def names_of(nodes: Iterable[fx.Node]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def read_sizes(graph: fx.Graph) -> None:
    """Make each symbol a number in the graph, so that a piece need not read the input with that size."""
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


def stages_of(graph: fx.Graph) -> dict[fx.Node, int]:
    """The stage of each node: even if it is compiled, otherwise odd. No op moves across an effect."""
    stages, apart = dict[fx.Node, int](), uncompiled_nodes(graph)
    barrier = latest = 0
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        is_barrier = op_table.runs_once(node.target) or op_table.writes_first_argument(node.target)
        earliest = max((stages.get(each, 0) for each in node.all_input_nodes), default=0)
        if not op_table.is_getitem(node.target):  # an item stays with its tuple
            earliest = max(earliest, latest if is_barrier else barrier)
        stages[node] = earliest + (earliest % 2 != (node in apart))
        latest = max(latest, stages[node])
        barrier = latest if is_barrier else barrier
    return stages


def piece_of(graph: fx.Graph, nodes: Sequence[fx.Node], results: Sequence[fx.Node]) -> fx.Graph:
    """A subgraph of some nodes that returns `results`."""
    piece, copies = fx.Graph(), {}
    read = dict.fromkeys(each for node in nodes for each in node.all_input_nodes if each not in nodes)
    inputs = [node for node in read if node.op != "get_attr"]
    for node in (*inputs, *(number for number in numbers_of_symbols(graph, inputs) if number not in nodes)):
        copies[node] = piece.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in (*(node for node in read if node.op == "get_attr"), *nodes):
        copies[node] = copy_node(piece, node, copies.__getitem__)
    piece.output(tuple(copies[node] for node in results))
    return piece


def numbers_of_symbols(graph: fx.Graph, inputs: Sequence[fx.Node]) -> list[fx.Node]:
    """The numbers that bind the symbols in the sizes of inputs; compilers expect them among the inputs."""
    missing = {symbol for node in inputs for symbol in symbols_of(node.meta["val"])}
    missing -= {bound_symbol(node.meta["val"]) for node in inputs}
    found = {bound_symbol(node.meta.get("val")): node for node in reversed(graph.nodes) if node.op != "output"}
    return [found[symbol] for symbol in sorted(missing, key=str) if symbol in found]


def run_in_order(inputs: Sequence[str], pieces: Sequence[Piece], results: Any) -> BoxedCallable:
    """A callable that runs the pieces and frees each value after the last piece that reads it."""

    def run(args: list) -> tuple[Any, ...]:
        values = dict(zip(inputs, args, strict=True))
        args.clear()
        for piece in pieces:
            given = [values[name] for name in piece.reads]
            for name in piece.last_reads:
                del values[name]
            values.update(zip(piece.makes, piece.call(given), strict=True))
        return tuple(fx.map_arg(list(results), lambda node: values[node.name]))

    run._boxed_call = True
    return run
