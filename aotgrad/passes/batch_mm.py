"""Batches small matrix products: one library call replaces many.

    a = mm(x, w1); b = mm(y, w2)  (equal shapes)     ->      p = bmm(stack([x, y]), stack([w1, w2])); a, b = p[0], p[1]
    a = mm(x, w); b = mm(y, w)                       ->      p = mm(cat([x, y]), w); a, b = the rows of p

The same holds for `addmm` with a bias of one dimension, which must be shared too where rows are batched, and for `bmm`s of
equal shapes.

The pass is off by default: the library may sum a larger product in another order, so results can differ from eager's in the
last bits. Enable it where that is acceptable:

    options={"joint_passes": [aotgrad.passes.BatchMM()]}

Products are batched if none needs another. Their *level* shows that: the number of products on the longest path to one. At
the first product of a batch, all operands must exist, except views, which are moved before it.

Source: TorchScript's `BatchMM` (torch/csrc/jit/passes/batch_mm.cpp); DyNet's on-the-fly batching (Neubig et al., 2017).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph.memory_owners import viewed_node
from aotgrad.ir import GraphHalf, JointGraph
from aotgrad.passes import ops
from aotgrad.passes.base import AnyGraph
from aotgrad.passes.memory import MemoryOwnership
from aotgrad.slots import Tangent

aten = ops.aten

MATRIX_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default)


@dataclass(frozen=True)
class BatchMM:
    """Batches products of at most `max_flops` multiplications each, if at least `min_batch` fit together."""

    max_flops: int = 1 << 18
    min_batch: int = 2
    name: str = "batch_mm"

    def apply(self, graph: AnyGraph) -> AnyGraph:
        batching = Batching.of(graph, self.min_batch)
        products = self.products(graph)
        left = batching.run(products, shared_operands, batching.write_rows)
        batching.run(left, shapes, batching.write_stacks)
        return graph

    def products(self, graph: JointGraph | GraphHalf) -> list[fx.Node]:
        """The small products whose memory is not visible outside, in order."""
        memory = MemoryOwnership.of(graph)
        seen = memory.fixed | memory.absolute
        found = [node for node in graph.module.graph.nodes if is_product(node)]
        return [node for node in found if flops_of(node) <= self.max_flops and memory.owner[node] not in seen]


def is_product(node: fx.Node) -> bool:
    if node.target is aten.addmm.default:
        bias: Any = node.args[0]
        return not node.kwargs and bias.meta["val"].dim() == 1
    return node.target in MATRIX_PRODUCTS


def flops_of(node: fx.Node) -> float:
    """The number of multiplications of a product; infinite for symbolic sizes."""
    *_, left, right = (arg.meta["val"] for arg in ops.args_of(node))
    if torch_compat.has_symbolic_shape(left) or torch_compat.has_symbolic_shape(right):
        return float("inf")
    return left.numel() * right.size(-1)


def shared_operands(node: fx.Node) -> Any:
    """Equal for products whose rows can be concatenated. A batched product has no such rows."""
    return node if node.target is aten.bmm.default else (*node.args[:-2], node.args[-1])


def shapes(node: fx.Node) -> Any:
    return tuple(tuple(arg.meta["val"].size()) for arg in ops.args_of(node))


@dataclass
class Batching:
    """One run over a graph.

    `position`: the order of nodes; a batch is written where its first product was. `tangents`: the tangents that a node
    depends on, as bits. Products of different tangents are not batched: one tangent may be undefined.
    """

    graph: fx.Graph
    min_batch: int
    position: dict[fx.Node, int]
    tangents: dict[fx.Node, int]

    @classmethod
    def of(cls, graph: JointGraph | GraphHalf, min_batch: int) -> Batching:
        nodes = list(graph.module.graph.nodes)
        slots = zip(graph.signature.inputs, nodes, strict=False)
        tangents = {node: 1 << index for index, (slot, node) in enumerate(slots) if isinstance(slot, Tangent)}
        for node in nodes:
            tangents.setdefault(node, functools.reduce(operator.or_, map(tangents.__getitem__, node.all_input_nodes), 0))
        return cls(graph.module.graph, min_batch, {node: index for index, node in enumerate(nodes)}, tangents)

    def run(self, products: Sequence[fx.Node], key: Callable, write: Callable) -> list[fx.Node]:
        """Batch independent products with equal keys. Returns the remaining products."""
        level = product_levels(self.graph)
        groups: dict[Hashable, list[fx.Node]] = {}
        for node in products:
            value = node.meta["val"]
            together = (node.target, level[node], self.tangents[node], value.dtype, value.device, key(node))
            groups.setdefault(together, []).append(node)
        left: list[fx.Node] = []
        for group in groups.values():
            batch = [node for node in group if all(self.can_precede(arg, group[0]) for arg in node.args)]
            if len(batch) < self.min_batch:
                left += group
                continue
            left += [node for node in group if node not in set(batch)]
            self.replace(batch, write)
        return left

    def replace(self, batch: Sequence[fx.Node], write: Callable) -> None:
        for node in batch:
            for arg in node.args:
                self.hoist(arg, batch[0])
        with self.graph.inserting_before(batch[0]):
            results = write(batch)
        for node, result in zip(batch, results, strict=True):
            node.replace_all_uses_with(result)
            self.graph.erase_node(node)

    # -- moving operands before the batch

    def can_precede(self, node: Any, reader: fx.Node) -> bool:
        """Whether `node` stands before `reader`, or is a view of a node that does."""
        while self.position[node] > self.position[reader]:
            viewed = viewed_node(node)
            if viewed is None or len(node.all_input_nodes) > 1:
                return False
            node = viewed
        return True

    def hoist(self, node: Any, reader: fx.Node) -> None:
        """Move `node`, and the views that it is made from, before `reader`."""
        late: list[fx.Node] = []
        while self.position[node] > self.position[reader]:
            late.append(node)
            node = node.args[0]
        for view in reversed(late):
            reader.prepend(view)
            self.position[view] = self.position[reader]

    # -- writing a batch

    def write_rows(self, batch: Sequence[fx.Node]) -> list[fx.Node]:
        """One product of all rows. Each result is a block of rows, with the layout of its own product."""
        rows = [node.meta["val"].size(0) for node in batch]
        *bias, _, right = ops.args_of(batch[0])
        stacked = self.call(batch[0], aten.cat.default, [node.args[-2] for node in batch])
        product = self.call(batch[0], batch[0].target, *bias, stacked, right)
        pieces = self.call(batch[0], aten.split_with_sizes.default, product, rows)
        return [self.call(node, operator.getitem, pieces, index) for index, node in enumerate(batch)]

    def write_stacks(self, batch: Sequence[fx.Node]) -> list[fx.Node]:
        """One batched product; each result is one of its matrices."""
        if batch[0].target is aten.bmm.default:
            return self.write_batches(batch)
        *bias, left, right = (self.call(batch[0], aten.stack.default, list(each)) for each in operands(batch))
        if bias:
            rows = self.call(batch[0], aten.unsqueeze.default, *bias, 1)
            product = self.call(batch[0], aten.baddbmm.default, rows, left, right)
        else:
            product = self.call(batch[0], aten.bmm.default, left, right)
        return [self.call(node, aten.select.int, product, 0, index) for index, node in enumerate(batch)]

    def write_batches(self, batch: Sequence[fx.Node]) -> list[fx.Node]:
        """One batched product of all the batches."""
        left, right = (self.call(batch[0], aten.cat.default, list(each)) for each in operands(batch))
        product = self.call(batch[0], aten.bmm.default, left, right)
        pieces = self.call(batch[0], aten.split_with_sizes.default, product, [node.meta["val"].size(0) for node in batch])
        return [self.call(node, operator.getitem, pieces, index) for index, node in enumerate(batch)]

    def call(self, like: fx.Node, target: Any, *args: Any) -> fx.Node:
        """Insert a call with its traced value and the origin of `like`."""
        name = "getitem" if target is operator.getitem else str(target).split(".")[1]
        new = self.graph.create_node("call_function", target, args, name=name)
        values = fx.map_arg(args, lambda arg: arg.meta["val"])
        with torch_compat.bare_evaluation(), like.meta["val"].fake_mode:
            new.meta = {**like.meta, "val": target(*values)}
        self.position[new], self.tangents[new] = self.position[like], self.tangents[like]
        return new


def operands(batch: Sequence[fx.Node]) -> Iterator[tuple[Any, ...]]:
    """The first arguments of all products, the second ones, and so on."""
    return zip(*(ops.args_of(node) for node in batch), strict=True)


def product_levels(graph: fx.Graph) -> dict[fx.Node, int]:
    """For each node, the number of products on the longest path to it, itself included."""
    level: dict[fx.Node, int] = {}
    for node in graph.nodes:
        before = max((level[arg] for arg in node.all_input_nodes), default=0)
        level[node] = before + (node.target in MATRIX_PRODUCTS)
    return level
