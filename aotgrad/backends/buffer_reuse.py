"""Writes results of pointwise ops into buffers at their last use, in the graphs of the `eager` backend.

In: a functional graph. Out: a copy with in-place ops and bitwise equal results. It allocates one buffer less, and the reused
buffer is still in the cache.

    mm = aten.mm(x, w);  relu = aten.relu(mm)        becomes        mm = aten.mm(x, w);  relu = aten.relu_(mm)

Only memory that the graph itself allocates is reused: never inputs, and therefore no saved values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table

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
    dying = dict(dying_buffers(module.graph))
    if not dying:
        return module
    graph, copies = fx.Graph(), {}
    graph.output(graph.graph_copy(module.graph, copies))
    for node, buffer in dying.items():
        write_into(copies[node], copies[buffer])
    return fx.GraphModule(module, graph)


def dying_buffers(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Pairs of a pointwise node and an argument of the same type whose memory is not read later."""
    nodes = list(graph.nodes)
    position = {node: k for k, node in enumerate(nodes)}
    memory: dict[fx.Node, set[fx.Node]] = {}
    last_use: dict[fx.Node, int] = {}
    for node in nodes:
        sources = [memory[source] for source in node.all_input_nodes]
        memory[node] = {node} if op_table.is_fresh(node.target) else set().union(*sources)
        last_use.update((buffer, position[node]) for source in sources for buffer in source)
    for node in nodes:
        if op_table.may_overwrite(node.target):
            candidates = node.args[:1] if node.target in BY_METHOD else node.args
            for buffer in candidates:
                dies = (
                    isinstance(buffer, fx.Node) and op_table.is_fresh(buffer.target) and last_use[buffer] == position[node]
                )
                if dies and readers(node, buffer, memory) == 1 and same_type(node, buffer):
                    yield node, buffer
                    break


def readers(node: fx.Node, buffer: fx.Node, memory: Mapping[fx.Node, set[fx.Node]]) -> int:
    """How many arguments of a node may share the memory of a buffer."""
    return sum(buffer in memory[source] for source in node.all_input_nodes)


def same_type(node: fx.Node, buffer: fx.Node) -> bool:
    """Whether both are plain tensors of one dtype, device, size and stride."""
    left, right = node.meta.get("val"), buffer.meta.get("val")
    if not (isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)) or left.layout is not torch.strided:
        return False
    alike = (left.dtype, left.device, left.layout) == (right.dtype, right.device, right.layout)
    flagged = any(value.is_conj() or value.is_neg() for value in (left, right))
    sizes = torch_compat.known_equal(left.size(), right.size())
    return alike and not flagged and sizes and torch_compat.known_equal(left.stride(), right.stride())


def write_into(node: fx.Node, buffer: fx.Node) -> None:
    """Make a node write its result into the memory of an argument."""
    if node.target in BY_METHOD:
        node.target = BY_METHOD[node.target]
    else:
        node.target, name = BY_OUT[node.target]
        node.kwargs = {**node.kwargs, name: buffer}
