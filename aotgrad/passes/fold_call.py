"""Replaces the nodes of a kept call by one, and those of its backward by another one.

If the result is a view of a value inside of the call, others may use that value, since a returned view is made outside of
the graph. They get a view of the result then, and the backward node gets the tangent in the sizes of the result.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph.kept_calls import MARK, KeptBackward
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.passes import rewrite
from aotgrad.passes.parts_of_call import PartsOfCall, StaysApart

OWN_MEANING = ("val", "tensor_meta", "original_aten", "torch_fn", "from_node", MARK)
"""The entries of `meta` that a folded node does not take from an op that it stands for."""


@dataclass(frozen=True)
class SizeOf:
    """A symbolic size: that of a dimension of another tensor."""

    dim: int


Sizes = list[int | SizeOf]


def fold(parts: PartsOfCall, moved: dict[fx.Node, fx.Node]) -> None:
    """Replace the nodes of a call by one, and those of its backward by another one. `moved`: results -> their new nodes.

    Raises:
        StaysApart: nothing was changed.
    """
    parts.check()
    inner = {node: size_behind(node, parts.results) for node in parts.inner_values()}
    backward = FoldedBackward.of(parts) if parts.backward else None
    results = call_as_node(parts)
    for node, size in inner.items():
        view = results[0]
        if not torch_compat.known_equal(node.meta["val"].shape, view.meta["val"].shape):
            with node.graph.inserting_before(view.next):
                view = view_as(view, size, view)
            copy_origin(view, node)
        replace_outside(node, view, parts)
    if backward is not None:
        backward.insert(results[0])
    for old, new in zip(parts.results, results, strict=True):
        replace_outside(old, new, parts)
        moved[old] = new


def replace_outside(old: fx.Node, new: fx.Node, parts: PartsOfCall) -> None:
    """Let others than the ops of a call read another node."""
    old.replace_all_uses_with(new, delete_user_cb=lambda user: user not in parts.forward and user not in parts.backward)


def size_behind(node: fx.Node, results: Sequence[fx.Node]) -> Sizes:
    """The sizes that make the only result of a call a value inside of it: both are the same contiguous memory.

    Raises:
        StaysApart: it is another value.
    """
    if len(results) != 1 or memory_owner(node) is not memory_owner(results[0]):
        raise StaysApart("others use a value between its arguments and its result")
    return size_of_same(node.meta["val"], results[0].meta["val"])


def size_of_same(value: torch.Tensor, other: torch.Tensor) -> Sizes:
    """The sizes of a tensor with the elements of another one, -1 for a symbolic one that the other one does not have.

    Raises:
        StaysApart: one is not contiguous, or two sizes are unknown.
    """
    sizes = sizes_like(value, other)
    is_whole = all(each.layout is torch.strided and each.is_contiguous() for each in (value, other))
    if not is_whole or sizes.count(-1) > 1 or not torch_compat.known_equal((value.numel(),), (other.numel(),)):
        raise StaysApart("others use a value between its arguments and its result, in another layout")
    return sizes


def sizes_like(value: torch.Tensor, other: torch.Tensor) -> Sizes:
    """The sizes of a tensor: numbers, sizes of another tensor, or -1."""
    known = [(SizeOf(k), size) for k, size in enumerate(other.shape)]

    def size_of(size: Any) -> int | SizeOf:
        if isinstance(size, int):
            return size
        return next((of for of, each in known if torch_compat.known_equal((each,), (size,))), -1)

    return [size_of(size) for size in value.shape]


def view_as(node: fx.Node, sizes: Sizes, of: fx.Node) -> fx.Node:
    """A view of a node, inserted where the graph inserts; its sizes are those of `of`."""
    graph = node.graph
    numbers: list[Any] = list(sizes)
    for k, size in enumerate(sizes):
        if isinstance(size, SizeOf):
            numbers[k] = graph.call_function(torch.ops.aten.sym_size.int, (of, size.dim))
            numbers[k].meta["val"] = of.meta["val"].shape[size.dim]
    view = graph.call_function(torch.ops.aten.view.default, (node, numbers))
    view.meta["val"] = rewrite.traced_value(view)
    return view


def call_as_node(parts: PartsOfCall) -> list[fx.Node]:
    """The results of the call as one node, inserted after its arguments."""
    call, first = parts.call, next(iter(parts.forward))
    with first.graph.inserting_after(max([first.prev, *(arg for arg in parts.names if arg.op != "placeholder")])):
        node = first.graph.call_function(call.function, parts.args, dict(parts.kwargs))
    copy_origin(node, parts.results[0])
    if call.returns_list:
        return items_as_nodes(node, parts.results)
    node.meta["val"] = parts.results[0].meta["val"]
    return [node]


def items_as_nodes(node: fx.Node, like: Sequence[fx.Node]) -> list[fx.Node]:
    """The items of a node's value, in place of other nodes."""
    items, last = [], node
    node.meta["val"] = tuple(old.meta["val"] for old in like)
    for k, old in enumerate(like):
        with node.graph.inserting_after(last):
            last = node.graph.call_function(operator.getitem, (node, k))
        copy_origin(last, old)
        last.meta["val"] = old.meta["val"]
        items.append(last)
    return items


def copy_origin(node: fx.Node, like: fx.Node) -> None:
    """Give a node what `like` says of its origin."""
    node.meta.update({name: value for name, value in like.meta.items() if name not in OWN_MEANING})


@dataclass(frozen=True)
class FoldedBackward:
    """The backward of a call as a graph of its own, and its inputs and outputs in the joint graph.

    `reshapes`: the tangent has other sizes than the result, in which the node takes it.
    """

    parts: PartsOfCall
    target: KeptBackward
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    reshapes: bool

    @classmethod
    def of(cls, parts: PartsOfCall) -> FoldedBackward:
        inputs, ops = parts.needed()
        names, tangent = tuple(inputs.values()), parts.tangent
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for k, (node, name) in enumerate(inputs.items()):
            name = f"{name}_{k}" if name in ("size", "constant") else name
            copies[node] = graph.placeholder("_".join(re.findall(r"\w+", name)))
            copies[node].meta["val"] = node.meta["val"]
        if not parts.owns_tangent:
            result = parts.results[0].meta["val"]
            inner = size_of_same(tangent.meta["val"], result)
            copies[tangent].meta["val"] = result
            copies[tangent] = view_as(copies[tangent], inner, copies[tangent])
        for node in ops:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta.pop(MARK, None)
        outputs = tuple(node for node in parts.gradients if node in parts.backward)
        graph.output(tuple(copies[node] for node in outputs))
        module = LazyGraphModule(torch.nn.Module(), graph)
        target = KeptBackward(parts.call.function, module, names, tuple(parts.gradients[node] for node in outputs))
        return cls(parts, target, tuple(inputs), outputs, not parts.owns_tangent)

    def insert(self, result: fx.Node) -> None:
        """Put the node into the joint graph, before the ops that it stands for. `result`: that of the call."""
        first = next(iter(self.parts.backward))
        graph, last = first.graph, list(self.parts.backward)[-1]
        with graph.inserting_before(first):
            node = graph.call_function(self.target, self.inputs)
        copy_origin(node, last)
        if self.reshapes:
            tangent, value = self.parts.tangent, result.meta["val"]
            with graph.inserting_before(node):
                view = view_as(tangent, sizes_like(value, value), result)
            copy_origin(view, last)
            node.replace_input_with(tangent, view)
        for old, new in zip(self.outputs, items_as_nodes(node, self.outputs), strict=True):
            replace_outside(old, new, self.parts)
