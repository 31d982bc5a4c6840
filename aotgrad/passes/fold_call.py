"""Replaces the nodes of a kept call by one, and those of its backward by another one.

If the result is a view of a value inside of the call, others may use that value, since a returned view is made outside of
the graph. They get a view of the result then, and the backward node gets the tangent in the sizes of the result. The same
holds for gradients that the function returns.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.kept_calls import KEPT_FUNCTION, MARK, CallArgument, KeptBackward
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.passes import rewrite
from aotgrad.passes.backward_of_call import BackwardOfCall, StaysApart
from aotgrad.passes.parts_of_call import PartsOfCall

OWN_MEANING = ("val", "tensor_meta", "original_aten", "torch_fn", "from_node", MARK)
"""The entries of `meta` that a folded node does not take from an op that it stands for."""


@dataclass(frozen=True)
class SizeOf:
    """A symbolic size: that of a dimension of another tensor."""

    dim: int


Sizes = list[int | SizeOf]

IS_INSIDE = "others use a value between its arguments and its result"
IS_NO_GRADIENT = "others use a value of its backward that is no gradient of an argument"


def fold(parts: PartsOfCall, moved: dict[fx.Node, fx.Node]) -> None:
    """Replace the nodes of a call by one, and those of each backward by another one.

    `moved`: results and gradients of calls -> their new nodes.

    Raises:
        StaysApart: nothing was changed.
    """
    parts.check()
    inner = [SameMemory.of(node, parts.results, IS_INSIDE) for node in parts.inner_values()]
    backwards = [FoldedBackward.of(parts, each) for each in parts.backwards]
    for each in backwards:
        inner += (SameMemory.of(node, each.outputs, IS_NO_GRADIENT) for node in each.backward.inner_values())
    results = call_as_node(parts)
    replaced = dict(zip(parts.results, results, strict=True))
    for each in backwards:
        replaced |= zip(each.outputs, each.inserted(results[0]), strict=True)
    for each in inner:
        replace_outside(each.value, each.view_of(replaced[each.other]), parts)
    for old, new in replaced.items():
        replace_outside(old, new, parts)
    moved.update(replaced)


def replace_outside(old: fx.Node, new: fx.Node, parts: PartsOfCall) -> None:
    """Let others than the ops of a call read another node."""
    ops = parts.ops
    old.replace_all_uses_with(new, delete_user_cb=lambda user: user not in ops)


@dataclass(frozen=True)
class SameMemory:
    """A value inside of a call that is the same contiguous memory as a result or gradient. `sizes`: those of the value."""

    value: fx.Node
    other: fx.Node
    sizes: Sizes

    @classmethod
    def of(cls, value: fx.Node, others: Sequence[fx.Node], otherwise: str) -> SameMemory:
        """Raises StaysApart: it is another value than all of `others`; `otherwise` says what that means."""
        for other in others:
            if memory_owner(value) is memory_owner(other):
                return cls(value, other, size_of_same(value.meta["val"], other.meta["val"]))
        raise StaysApart(otherwise)

    def view_of(self, node: fx.Node) -> fx.Node:
        """The value as a view of a node that replaces `other`."""
        if torch_compat.known_equal(self.value.meta["val"].shape, node.meta["val"].shape):
            return node
        with node.graph.inserting_before(node.next):
            view = view_as(node, self.sizes, node)
        copy_origin(view, self.value)
        return view


def size_of_same(value: torch.Tensor, other: torch.Tensor) -> Sizes:
    """The sizes of a tensor with the elements of another one, -1 for a symbolic one that the other one does not have.

    Raises:
        StaysApart: one is not contiguous, or two sizes are unknown.
    """
    sizes = sizes_like(value, other)
    is_whole = all(each.layout is torch.strided and each.is_contiguous() for each in (value, other))
    places = [(each.numel(), each.storage_offset()) for each in (value, other)]
    if not is_whole or sizes.count(-1) > 1 or not torch_compat.known_equal(*places):
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
    call, first = parts.computed.call, next(iter(parts.computed.ops))
    arguments = [arg for arg in parts.computed.names if arg.op != "placeholder"]
    with first.graph.inserting_after(max([first.prev, *arguments])):
        node = first.graph.call_function(parts.target, parts.args, dict(parts.kwargs))
    copy_origin(node, parts.results[0])
    node.meta[KEPT_FUNCTION] = call.function
    if call.items is not None or call.changed:
        places = (*(call.items or (0,)), *range(call.count, call.count + len(call.changed)))
        return items_as_nodes(node, dict(zip(places, parts.results, strict=True)), call.count + len(call.changed))
    node.meta["val"] = parts.results[0].meta["val"]
    return [node]


def copy_without_statistics(graph: fx.Graph, node: fx.Node, copies: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """A copy of a node, which computes no new running statistics."""
    target, args = op_table.call_without_statistics(node)
    if target is node.target and args == node.args:
        copy = graph.node_copy(node, copies.__getitem__)
    else:
        copy = graph.call_function(target, *fx.map_arg((args, node.kwargs), copies.__getitem__))
        copy.meta = {**node.meta}
        if target is not node.target:
            copy.meta["val"] = node.meta["val"][: len(target._schema.returns)]
    copy.meta.pop(MARK, None)
    return copy


def items_as_nodes(node: fx.Node, like: Mapping[int, fx.Node], count: int) -> list[fx.Node]:
    """Items of a node's value, which has `count` of them, in place of other nodes. The rest of them is `None`."""
    items, last = [], node
    node.meta["val"] = tuple(like[k].meta["val"] if k in like else None for k in range(count))
    for k, old in like.items():
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
    """A backward of a call as a graph of its own, and its inputs and outputs in the joint graph."""

    backward: BackwardOfCall
    target: KeptBackward
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]

    @classmethod
    def of(cls, parts: PartsOfCall, backward: BackwardOfCall) -> FoldedBackward:
        inputs, ops = backward.needed()
        names, tangent = tuple(inputs.values()), backward.tangent
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for k, (node, name) in enumerate(inputs.items()):
            name = f"{name}_{k}" if name in ("size", "constant") else name
            copies[node] = graph.placeholder("_".join(re.findall(r"\w+", name)))
            copies[node].meta["val"] = node.meta["val"]
        if not backward.owns_tangent:
            result = parts.results[0].meta["val"]
            inner = size_of_same(tangent.meta["val"], result)
            copies[tangent].meta["val"] = result
            copies[tangent] = view_as(copies[tangent], inner, copies[tangent])
        for node in ops:
            copies[node] = copy_without_statistics(graph, node, copies)
        outputs = tuple(node for node in backward.gradients if node in backward.ops)
        graph.output(tuple(copies[node] for node in outputs))
        module = LazyGraphModule(torch.nn.Module(), graph)
        returned = tuple(backward.gradients[node] for node in outputs)
        marks: dict[fx.Node, Any] = {node: CallArgument(name) for node, name in backward.forward.names.items()}
        args, kwargs = fx.map_arg((parts.args, dict(parts.kwargs)), marks.__getitem__)
        target = KeptBackward(backward.forward.call.function, module, names, returned, args, kwargs)
        return cls(backward, target, tuple(inputs), outputs)

    def inserted(self, result: fx.Node) -> list[fx.Node]:
        """The new gradients, from a node in the joint graph before the ops that it stands for. `result`: of the call."""
        first, last = next(iter(self.backward.ops)), list(self.backward.ops)[-1]
        graph, tangent = first.graph, self.backward.tangent
        with graph.inserting_before(first):
            node = graph.call_function(self.target, self.inputs)
        copy_origin(node, last)
        if not self.backward.owns_tangent:
            value = result.meta["val"]
            with graph.inserting_before(node):
                view = view_as(tangent, sizes_like(value, value), result)
            copy_origin(view, last)
            node.replace_input_with(tangent, view)
        return items_as_nodes(node, dict(enumerate(self.outputs)), len(self.outputs))
