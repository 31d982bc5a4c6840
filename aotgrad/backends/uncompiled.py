"""Cuts a graph into pieces, so that a compiler only gets ops that it can compile.

    a = mul(x, 2); s = to_sparse(a); t = mul(s, 3); b = mm(t, a); c = sin(b)
    pieces: [a] compiled; [s, t, b] not compiled; [c] compiled

Not compiled are:
- sparse values: Inductor treats them as dense, with the strides that the trace made up.
- values computed from `values()` or `indices()` of a sparse tensor: the trace does not know their number.
- ops without a shape function, such as `linalg.lstsq`: Inductor would need their sizes, which depend on data.
- calls of functions that are not traced, and their backwards.
- what reads an input that is lazily negated (`x.conj().imag`), or a view of one: Inductor reads the memory as it is.
- writes into a view of a complex tensor: Inductor makes them in place, and moves reads of the tensor before them.
- ops that torch's fakes refuse or lay out otherwise than their kernels do, such as `grouped_mm` of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.pieces import Cut, NodeGroup, copy_with_sizes
from aotgrad.eager_calls.ops import is_eager_call, reasons_of_eager_calls
from aotgrad.graph import op_table


def must_be_cut(graph: fx.Graph) -> bool:
    """Whether a graph has ops that must not be compiled."""
    return any(is_sparse(node) or is_left_whole(node) or is_negated_input(node) for node in graph.nodes)


def reasons(graph: fx.Graph) -> dict[fx.Node, str]:
    """The ops that are not compiled, and why."""
    apart = uncompiled_nodes(graph) if must_be_cut(graph) else ()
    ops = (node for node in graph.nodes if node.op == "call_function" and not op_table.is_getitem(node.target))
    known = reasons_of_eager_calls(graph)
    return {node: known.get(node) or reason_for(node) for node in ops if node in apart}


def reason_for(node: fx.Node) -> str:
    if is_sized_by_values(node):
        return "the sizes of its results depend on values"
    if is_complex_scatter(node):
        return "it writes into a view of a complex tensor"
    if not torch_compat.has_fake_of_torch(node):
        return "Inductor cannot know the layout of its result"
    if any(map(is_negated, node.all_input_nodes)):
        return "it reads an input that is lazily negated"
    return "it computes with a sparse tensor, or with parts of one"


def is_left_whole(node: fx.Node) -> bool:
    """Whether a dense node is not compiled."""
    is_of_kernel = is_sized_by_values(node) or not torch_compat.has_fake_of_torch(node)
    return is_of_kernel or is_complex_scatter(node) or is_eager_call(op_of_item(node))


def is_sized_by_values(node: fx.Node) -> bool:
    """Whether a node is an op without a shape function, or one of its results."""
    return torch_compat.READS_VALUES.get(op_of_item(node)) is torch_compat.Read.SIZES


def op_of_item(node: fx.Node) -> Any:
    """The op of a node, or the one whose result it is an item of."""
    return node.all_input_nodes[0].target if op_table.is_getitem(node.target) else node.target


def is_complex_scatter(node: fx.Node) -> bool:
    """Whether a node writes into a view of a complex tensor."""
    value = node.meta.get("val")
    is_scatter = node.op == "call_function" and op_table.short_name(node.target) in VIEW_SCATTERS
    return is_scatter and isinstance(value, torch.Tensor) and value.is_complex()


VIEW_SCATTERS = ("as_strided_scatter", "diagonal_scatter", "select_scatter", "slice_scatter")


def is_sparse(node: fx.Node) -> bool:
    values = op_table.items_of(node.meta.get("val"))
    return any(isinstance(value, torch.Tensor) and value.layout is not torch.strided for value in values)


def is_negated(node: fx.Node) -> bool:
    """Whether a node is a tensor whose memory has the negative of its value."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_neg()


def is_negated_input(node: fx.Node) -> bool:
    return node.op in ("placeholder", "get_attr") and is_negated(node)


def readers_of_negated(graph: fx.Graph) -> Iterator[fx.Node]:
    """The ops that take a lazily negated input or a view of one."""
    found = set(filter(is_negated_input, graph.nodes))
    for node in graph.nodes:
        if node.op != "output" and not found.isdisjoint(node.all_input_nodes):
            yield node
            found |= {node} if is_negated(node) else set()


def uncompiled_nodes(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that are not compiled.

    Those left whole, those with sparse values and what depends on parts of these, and readers of lazily negated inputs.
    """
    from_parts: set[fx.Node] = set()
    for node in graph.nodes:
        is_part = op_table.short_name(node.target) in torch_compat.PARTS_OF_SPARSE
        if node.op != "output" and (is_part or any(each in from_parts for each in node.all_input_nodes)):
            from_parts.add(node)
    from_parts.update(filter(is_left_whole, graph.nodes), readers_of_negated(graph))
    return from_parts.union(node for node in graph.nodes if any(map(is_sparse, (node, *node.all_input_nodes))))


def cut_uncompiled(graph: fx.Graph) -> Cut:
    """A graph in pieces that are compiled and others."""
    return cut_apart(graph, uncompiled_nodes)


def cut_apart(graph: fx.Graph, find_apart: Callable[[fx.Graph], set[fx.Node]]) -> Cut:
    """A graph in as few pieces as possible that have only nodes apart, or none, and are not compiled, or are."""
    graph = copy_with_sizes(graph)
    apart = find_apart(graph)
    stages = stages_of(graph, apart)
    groups = [[node for node in stages if stages[node] == stage] for stage in sorted(set(stages.values()))]
    return Cut.of(graph, [NodeGroup(nodes, is_compiled=stages[nodes[0]] % 2 == 0) for nodes in groups])


def stages_of(graph: fx.Graph, apart: Collection[fx.Node]) -> dict[fx.Node, int]:
    """The stage of each node: odd if it is apart, otherwise even. No op moves across an effect.

    Numbers that are apart come as early as they can, those of inputs before all else: other stages read them as sizes.
    """
    stages = dict[fx.Node, int]()
    barrier = latest = 0
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        is_number = node in apart and op_table.is_symbolic_value(node)
        is_barrier = op_table.runs_once(node.target) or op_table.writes_first_argument(node.target)
        first = -1 if is_number else 0
        earliest = max((stages.get(each, first) for each in node.all_input_nodes), default=first)
        if not (is_number or op_table.is_getitem(node.target)):  # an item stays with its tuple
            earliest = max(earliest, latest if is_barrier else barrier)
        stages[node] = earliest + (earliest % 2 != (node in apart))
        latest = max(latest, stages[node])
        barrier = latest if is_barrier else barrier
    return stages
