"""Writes results of pointwise ops and of ops on lists into buffers at their last use, in the graphs of the `eager` backend.

In: a functional graph. Out: a copy with in-place ops and bitwise equal results. It allocates one buffer less, and the reused
buffer is still in the cache.

    mm = aten.mm(x, w);  relu = aten.relu(mm)        becomes        mm = aten.mm(x, w);  relu = aten.relu_(mm)

Only memory that the graph itself allocates is reused: never inputs, and therefore no saved values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_graph
from aotgrad.graph.geometry import same_value_type

aten = torch.ops.aten

BY_METHOD: Mapping[Any, Any] = {
    aten.relu.default: aten.relu_.default,
}
"""For ops whose `out=` variant copies: the in-place variant, which writes to the first argument."""

BY_OUT: Mapping[Any, tuple[Any, str]] = {
    aten.add.Tensor: (aten.add.out, "out"),
    aten.cos.default: (aten.cos.out, "out"),
    aten.div.Tensor: (aten.div.out, "out"),
    aten.elu_backward.default: (aten.elu_backward.grad_input, "grad_input"),
    aten.exp.default: (aten.exp.out, "out"),
    aten.gelu.default: (aten.gelu.out, "out"),
    aten.gelu_backward.default: (aten.gelu_backward.grad_input, "grad_input"),
    aten.leaky_relu_backward.default: (aten.leaky_relu_backward.grad_input, "grad_input"),
    aten.mul.Tensor: (aten.mul.out, "out"),
    aten.neg.default: (aten.neg.out, "out"),
    aten.pow.Tensor_Scalar: (aten.pow.Tensor_Scalar_out, "out"),
    aten.reciprocal.default: (aten.reciprocal.out, "out"),
    aten.rsqrt.default: (aten.rsqrt.out, "out"),
    aten.sigmoid.default: (aten.sigmoid.out, "out"),
    aten.sigmoid_backward.default: (aten.sigmoid_backward.grad_input, "grad_input"),
    aten.silu.default: (aten.silu.out, "out"),
    aten.silu_backward.default: (aten.silu_backward.grad_input, "grad_input"),
    aten.sin.default: (aten.sin.out, "out"),
    aten.sqrt.default: (aten.sqrt.out, "out"),
    aten.sub.Tensor: (aten.sub.out, "out"),
    aten.tanh.default: (aten.tanh.out, "out"),
    aten.tanh_backward.default: (aten.tanh_backward.grad_input, "grad_input"),
    aten.threshold_backward.default: (aten.threshold_backward.grad_input, "grad_input"),
}
"""Pointwise ops, their `out=` variants, which write each element after reading it, and the name of that argument."""


def reuse_buffers(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph that reuses dead buffers; the module itself if there are none."""
    use = MemoryUse(module.graph)
    dying, lists = dict(dying_buffers(use)), list(dying_lists(use))
    if not dying and not lists:
        return module
    copies: dict[fx.Node, fx.Node] = {}
    graph = copy_graph(module.graph, copies)
    for node, buffer in dying.items():
        write_into(copies[node], copies[buffer])
    for node in lists:
        write_into_list(copies[node])
    return fx.GraphModule(module, graph)


class MemoryUse:
    """The memory that the values of a graph may lie in, named by the nodes that allocate it, and who reads it last.

    The results of an op on lists count as one piece of memory.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.nodes = list(graph.nodes)
        self.memory: dict[fx.Node, set[fx.Node]] = {}
        self.last_reader: dict[fx.Node, fx.Node] = {}
        for node in self.nodes:
            sources = [self.memory[source] for source in node.all_input_nodes]
            self.memory[node] = {node} if allocates(node) else set().union(*sources)
            if not op_table.is_getitem(node.target):  # an item is read where it is used
                self.last_reader.update((buffer, node) for source in sources for buffer in source)

    def readers(self, node: fx.Node, buffer: fx.Node) -> int:
        """How many arguments of a node may share the memory of a buffer."""
        return sum(buffer in self.memory[source] for source in node.all_input_nodes)


def allocates(node: fx.Node) -> bool:
    return op_table.is_fresh(node.target) or op_table.makes_new_list(node.target)


def dying_buffers(use: MemoryUse) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Pairs of a pointwise node and an argument of the same type whose memory is not read later."""
    for node in use.nodes:
        if op_table.may_overwrite(node.target):
            candidates = node.args[:1] if node.target in BY_METHOD else node.args
            for buffer in candidates:
                dies = isinstance(buffer, fx.Node) and op_table.is_fresh(buffer.target) and use.last_reader[buffer] is node
                if dies and use.readers(node, buffer) == 1 and fits_buffer(node.meta.get("val"), buffer):
                    yield node, buffer
                    break


def dying_lists(use: MemoryUse) -> Iterator[fx.Node]:
    """Ops on lists that may write into their first list: the items of another such op, which nothing else reads later."""
    for node in use.nodes:
        if op_table.makes_new_list(node.target) and len(op_table.written_in_place(node.target)) == 1:
            buffers: Any = node.args[0]
            owner: Any = buffers[0].args[0] if op_table.is_getitem(buffers[0].target) else buffers[0]
            dies = op_table.makes_new_list(owner.target) and use.last_reader[owner] is node
            if dies and use.readers(node, owner) == len(buffers) == len(set(buffers)) and same_types(node, buffers):
                yield node


def same_types(node: fx.Node, buffers: Sequence[fx.Node]) -> bool:
    """Whether the results of an op on lists match some values, each to the one at its position."""
    values = node.meta.get("val")
    if not isinstance(values, (list, tuple)) or len(values) != len(buffers):
        return False
    return all(fits_buffer(value, buffer) for value, buffer in zip(values, buffers, strict=True))


def fits_buffer(value: Any, buffer: fx.Node) -> bool:
    """Whether a value can be written in place of another: a strided tensor of the same type, without lazy flags."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_conj() or value.is_neg():
        return False
    return same_value_type(value, buffer.meta.get("val"))


def write_into(node: fx.Node, buffer: fx.Node) -> None:
    """Make a node write its result into the memory of an argument."""
    if node.target in BY_METHOD:
        node.target = BY_METHOD[node.target]
    else:
        node.target, name = BY_OUT[node.target]
        node.kwargs = {**node.kwargs, name: buffer}


def write_into_list(node: fx.Node) -> None:
    """Make an op on lists write its results into the tensors of its first list."""
    buffers: Any = node.args[0]
    for item in list(node.users):
        item.replace_all_uses_with(buffers[item.args[1]])
        item.graph.erase_node(item)
    node.target = op_table.in_place_variant(node.target)
