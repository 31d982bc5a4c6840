"""Constant propagation: evaluates nodes that depend on numbers alone, and keeps equal constants once.

    ones = ones([3, 3]); tril = tril(ones)          ->      _folded_0 = constant
    zeros = zeros_like(primals_1)                   ->      zeros = full([3], 0)            does not read the input

A constant is the result of the op itself, so its bits are eager's. Large constants are not made, and a constant of equal
elements becomes a `full`. An output is never a constant, since the caller may write to it. For the same reason, tensors that
the function closes over are no constants; tensors that it makes from numbers (`torch.tensor([1, 2])`) are.

`zeros_like` of a value that depends on a tangent stays: without the tangent it is `None`, no tensor.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.closed_over import FOLDED
from aotgrad.passes import ops, rewrite
from aotgrad.passes.base import AnyGraph
from aotgrad.passes.memory import MemoryOwnership
from aotgrad.slots import Tangent

aten = ops.aten


@dataclass(frozen=True)
class ConstantPropagation:
    """Computes constants of at most `max_elements` elements."""

    max_elements: int = 1 << 16
    name: str = "constants"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        folding = Folding.of(graph, self.max_elements)
        for node in graph.module.graph.nodes:
            folding.visit(node)
        return graph


@dataclass
class Folding:
    """One run over a graph. `known`: the computed values. `pool`: the constants by their bits."""

    module: fx.GraphModule
    memory: MemoryOwnership
    tangent_dependent: set[fx.Node]
    max_elements: int
    known: dict[fx.Node, torch.Tensor] = field(default_factory=dict)
    pool: dict[tuple, fx.Node] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Any, max_elements: int) -> Folding:
        pairs = zip(graph.signature.inputs, graph.module.graph.nodes, strict=False)
        tangents = {node for slot, node in pairs if isinstance(slot, Tangent)}
        for node in graph.module.graph.nodes:
            if not tangents.isdisjoint(node.all_input_nodes):
                tangents.add(node)
        return cls(graph.module, MemoryOwnership.of(graph), tangents, max_elements)

    def visit(self, node: fx.Node) -> None:
        """Evaluate a node of constants, or replace the constant arguments of another node."""
        if node.target is torch_compat.zero_without_memory:
            give_memory(node)
        if node.target in ops.CREATION_LIKE and node not in self.tangent_dependent:
            self.forget_input(node)
        if self.is_foldable(node):
            value = self.evaluate(node)
            if value is not None:
                self.known[node] = value
        elif node.op == "call_function" and not self.known.keys().isdisjoint(node.all_input_nodes):
            node.args = fx.map_arg(node.args, lambda arg: self.constant_for(arg, node))
            node.kwargs = fx.map_arg(node.kwargs, lambda arg: self.constant_for(arg, node))

    def forget_input(self, node: fx.Node) -> None:
        """Turn `zeros_like(x)` and similar ops into a `full`, so that `x` is not needed."""
        traced, value = node.meta["val"], filled_with(node)
        pinned = node.kwargs.get("pin_memory")
        if isinstance(value, fx.Node) or pinned or not is_small(traced, torch.inf) or not traced.is_contiguous():
            return
        node.target, node.args, node.kwargs = aten.full.default, (list(traced.size()), value), settings_of(traced)

    def is_foldable(self, node: fx.Node) -> bool:
        """Whether the node is small and computed from numbers and known constants."""
        if not is_small(node.meta.get("val"), self.max_elements):
            return False
        if is_own_constant(node, self.module):
            return True
        if not ops.is_pure(node) or not ops.is_aten(node.target) or op_table.is_absolute(node.target):
            return False
        sources = node.all_input_nodes
        return bool(sources) and all(arg in self.known or self.is_made_of_numbers(arg) for arg in sources)

    def is_made_of_numbers(self, node: fx.Node) -> bool:
        """Whether a node is `ones([3])` or similar: cheap, so evaluated only if something is computed from it."""
        is_creation = node.target in ops.CREATION_FROM_NUMBERS and not node.all_input_nodes
        return is_creation and is_small(node.meta.get("val"), self.max_elements)

    def evaluate(self, node: fx.Node) -> torch.Tensor | None:
        """The value of the node, or `None` if the op raises or its result differs from the traced one.

        Such an op stays in the graph, which then raises what eager raises.
        """
        if is_own_constant(node, self.module):
            return getattr(self.module, ops.args_of(node)[0].target)
        with torch_compat.bare_evaluation():
            args, kwargs = fx.map_arg((node.args, node.kwargs), self.value_of)
            try:
                value = ops.run(node, args, kwargs)
            except (IndexError, RuntimeError, ValueError):
                return None
        traced = node.meta["val"]
        agrees = (value.size(), value.stride(), value.dtype) == (traced.size(), traced.stride(), traced.dtype)
        return value if agrees else None

    def value_of(self, node: fx.Node) -> torch.Tensor:
        return self.known[node] if node in self.known else ops.run(node, node.args, node.kwargs)

    def constant_for(self, arg: fx.Node, reader: fx.Node) -> fx.Node:
        """The node of the constant that replaces `arg`, one for all equal constants; `arg` itself if it must stay."""
        memory = self.memory
        if arg not in self.known or memory.owner[arg] in memory.fixed or memory.owner[arg] in memory.absolute:
            return arg
        value = self.known[arg]
        key = pool_key(value)
        if key not in self.pool:
            self.pool[key] = self.uniform(arg, value, reader) or self.attribute(arg, value, reader)
        return self.pool[key]

    def uniform(self, node: fx.Node, value: torch.Tensor, reader: fx.Node) -> fx.Node | None:
        """A `full` for a contiguous tensor whose elements have equal bits."""
        if value.numel() < 2 or not value.is_contiguous() or value.dtype.is_complex or not has_equal_elements(value):
            return None
        number = value.reshape(-1)[0].item()
        if number != number:  # a number does not tell which of the many NaNs it is
            return None
        with node.graph.inserting_before(reader):
            new = node.graph.call_function(aten.full.default, (list(value.size()), number), settings_of(value))
        new.meta = {**node.meta}
        return new

    def attribute(self, node: fx.Node, value: torch.Tensor, reader: fx.Node) -> fx.Node:
        name = f"{FOLDED}{len(self.pool)}"
        self.module.register_buffer(name, value)
        with node.graph.inserting_before(reader):
            new = node.graph.get_attr(name)
        new.meta = {**node.meta}
        return new


def give_memory(node: fx.Node) -> None:
    """Replace a zero without memory, an undefined tangent of forward mode, by zeros: compiled kernels read its memory.

    Ops on it need no change: `zero * x` was traced as another zero.
    """
    traced = node.meta["val"]
    node.target, node.args, node.kwargs = aten.full.default, (node.args[0], 0), settings_of(traced)
    node.meta["val"] = rewrite.traced_value(node)


def settings_of(tensor: torch.Tensor) -> dict[str, Any]:
    """The keyword arguments of a creation op."""
    return {"dtype": tensor.dtype, "layout": tensor.layout, "device": tensor.device, "pin_memory": False}


def filled_with(node: fx.Node) -> Any:
    """The value of all elements of a node in `CREATION_LIKE`."""
    if node.target in (aten.zeros_like.default, aten.new_zeros.default):
        return 0
    if node.target in (aten.ones_like.default, aten.new_ones.default):
        return 1
    return node.args[2] if node.target is aten.new_full.default else node.args[1]


def is_small(value: Any, max_elements: float) -> bool:
    """Whether a traced value is a plain tensor of known size with at most `max_elements` elements."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or torch_compat.has_symbolic_shape(value):
        return False
    is_plain = not value.is_conj() and not value.is_neg() and value.device.type != "meta"
    return is_plain and value.numel() <= max_elements


def is_own_constant(node: fx.Node, module: fx.GraphModule) -> bool:
    """Whether the node copies a tensor that the function makes from Python numbers."""
    if node.target is not aten.lift_fresh_copy.default or ops.args_of(node)[0].op != "get_attr":
        return False
    return type(getattr(module, ops.args_of(node)[0].target)) is torch.Tensor


def pool_key(value: torch.Tensor) -> tuple:
    return (value.dtype, value.device, value.size(), value.stride(), element_bytes(value))


def has_equal_elements(value: torch.Tensor) -> bool:
    """Whether all elements have the same bits."""
    data = element_bytes(value)
    return data == data[: value.element_size()] * value.numel()


def element_bytes(value: torch.Tensor) -> bytes:
    """The bits of the elements, in index order."""
    dense = value.detach().cpu().contiguous()
    return ctypes.string_at(dense.data_ptr(), dense.nbytes) if dense.numel() else b""
