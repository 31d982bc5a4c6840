"""Inductor's writes in place: corrections of the pass that introduces them, and of their code."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.fx as fx
import torch.utils._pytree as pytree

from aotgrad.torch_compat.ops import arguments_by_name, written_names


def check_reads_of_targets() -> contextlib.AbstractContextManager[None]:
    """Inside, a write stays functional if its other arguments are read from what it would write to.

    Torch checks what reads the target after the write, but not what the write itself reads: views of the target, and values
    computed from it in the same kernel.
    """
    return _kept_functional(_reads_what_it_writes)


def keep_writes_to_converted_views() -> contextlib.AbstractContextManager[None]:
    """Inside, a write to a view with another dtype than its base stays functional.

    Torch would convert the numbers of an indexed write to the dtype of the base and write them there, and has no code for a
    write to a part of such a view.
    """
    return _kept_functional(_writes_to_a_converted_view)


@contextlib.contextmanager
def buffer_written_values() -> Iterator[None]:
    """Inside, a value written in place is first computed into a separate buffer if it reads other elements of the target.

    Torch does this for some ops, but not if there are views between the op and the write.
    """
    from torch._inductor import ir

    layout = ir.MutationLayoutSHOULDREMOVE
    realize = layout.realize_into.__func__

    def realize_into(cls: type, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        dst.realize()
        if _reads_other_elements(src, dst):
            src = _copy_of_value(src)
            src.realize()
        return realize(cls, src, dst, *args, **kwargs)

    with mock.patch.object(layout, "realize_into", classmethod(realize_into)):
        yield


@contextlib.contextmanager
def copy_into_written_concatenations() -> Iterator[None]:
    """Inside, `cat` copies its inputs if one of them, or its result, is written in place.

    Torch computes the inputs in the memory of the result, and does not order their reads with writes to the result.
    """
    from torch._inductor import ir
    from torch._inductor.virtualized import V

    realize, written = ir.ConcatKernel.realize_into.__func__, dict[Any, set[Any]]()

    def realize_into(cls: type, src: Any, dst: Any) -> Any:
        node = V.graph.current_node
        if node.graph not in written:
            written[node.graph] = {memory for each in node.graph.nodes for memory in _storages(_written_nodes(each))}
        if isinstance(src, ir.TensorBox) and not written[node.graph].isdisjoint(_storages([node, *node.all_input_nodes])):
            src = _copy_of_value(src).data
        return realize(cls, src, dst)

    with mock.patch.object(ir.ConcatKernel, "realize_into", classmethod(realize_into)):
        yield


def _copy_of_value(value: Any) -> Any:
    """A copy of a value, not computed yet."""
    from torch._inductor import ir

    return ir.Pointwise.create(
        device=value.get_device(), dtype=value.get_dtype(), inner_fn=value.make_loader(), ranges=value.get_size()
    )


def _storages(nodes: Sequence[fx.Node]) -> set[Any]:
    from torch._inductor.fx_utils import get_node_storage

    return {get_node_storage(node) for node in nodes} - {None}


def _written_nodes(node: fx.Node) -> list[fx.Node]:
    """The arguments that a node may write to: all those of an unknown higher-order op."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return node.all_input_nodes
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    named = arguments_by_name(node.target, node.args, node.kwargs)
    return _nodes_in([named.get(name) for name in written_names(node.target)])


def _reads_other_elements(source: Any, target: Any) -> bool:
    """Whether an element of a value is computed from elements of a target at other positions."""
    from torch._inductor import ir
    from torch._inductor.dependencies import extract_read_writes

    with mock.patch.object(ir.FlexibleLayout, "allow_indexing", True):  # strides that may still change
        read = extract_read_writes(source.make_loader(), source.get_size()).reads
        own = extract_read_writes(target.make_loader(), target.get_size()).reads
    return any(each.name == target.get_name() and each not in own for each in read)


@contextlib.contextmanager
def _kept_functional(is_concerned: Callable[[fx.Node], bool]) -> Iterator[None]:
    """Inside, writes that `is_concerned` selects are not turned into in-place ones."""
    from torch._inductor.fx_passes import reinplace

    make_in_place = reinplace.reinplace_inplaceable_ops_core

    def make_safe_ones_in_place(graph: fx.Graph) -> None:
        with _disguised([node for node in graph.nodes if is_concerned(node)]):
            make_in_place(graph)

    with mock.patch.object(reinplace, "reinplace_inplaceable_ops_core", make_safe_ones_in_place):
        yield


@contextlib.contextmanager
def _disguised(nodes: Sequence[fx.Node]) -> Iterator[None]:
    """Inside, passes do not recognize what the nodes call."""
    targets = [node.target for node in nodes]
    for node in nodes:
        node.target = _disguise
    try:
        yield
    finally:
        for node, target in zip(nodes, targets, strict=True):
            node.target = target


def _disguise(*_: Any) -> None:
    """The target of a disguised node."""


def _writes_to_a_converted_view(node: fx.Node) -> bool:
    from torch._inductor.fx_passes.reinplace import _generalized_scatter

    target: Any = node.args[0] if node.args else None
    if node.target is _generalized_scatter:
        views: Any = node.args[2]
        if any(view.target is torch.ops.aten.view.dtype for view in views):
            return True
    elif node.target not in _WRITES_TO_CHOSEN_ELEMENTS:
        return False
    while isinstance(target.target, torch._ops.OpOverload) and target.target.is_view:
        if target.target is torch.ops.aten.view.dtype:
            return True
        target = target.args[0]
    return False


def _reads_what_it_writes(node: fx.Node) -> bool:
    """Whether an op on a list, or an indexed write, would read elements that it has written to.

    Also true for complex numbers: Inductor has no code for such writes to lists. It calls torch's op for an indexed one, and
    does not know then that the result is the target, which a later write changes.
    """
    if not (is_indexed := node.target in _WRITES_TO_CHOSEN_ELEMENTS) and not _is_on_lists(node):
        return False
    targets = _nodes_in(node.args[:1])
    if any(target.meta["val"].is_complex() for target in targets):
        return True
    if is_indexed:
        return _is_read_from(targets, _nodes_in(node.args[1:]), of=None)
    return any(_is_read_from(targets, _nodes_in(_at(k, node.args[1:])), of=target) for k, target in enumerate(targets))


_WRITES_TO_CHOSEN_ELEMENTS = (torch.ops.aten.index_put.default, torch.ops.aten._unsafe_index_put.default)


def _is_read_from(targets: Sequence[fx.Node], values: Sequence[fx.Node], of: fx.Node | None) -> bool:
    """Whether one of `values` is computed from the memory of `targets`, except element by element from `of`."""
    from torch._inductor.fx_utils import get_node_storage

    storages = _storages(targets)
    waiting, seen = [(value, of is not None) for value in values], set()
    while waiting:
        node, is_elementwise = waiting.pop()
        if (node, is_elementwise) in seen or (node is of and is_elementwise):
            continue
        seen.add((node, is_elementwise))
        if get_node_storage(node) in storages:
            return True
        sources, each_alone = _sources(node)
        waiting += [(source, is_elementwise and each_alone) for source in sources]
    return False


def _sources(node: fx.Node) -> tuple[Sequence[fx.Node], bool]:
    """The arguments that a value is computed from, and whether each element depends only on those at its position."""
    made_by = node.args[0] if node.target is operator.getitem else None
    if isinstance(made_by, fx.Node) and _is_on_lists(made_by):
        return _nodes_in(_at(node.args[1], made_by.args)), True
    return node.all_input_nodes, torch.Tag.pointwise in getattr(node.target, "tags", ())


def _is_on_lists(node: fx.Node) -> bool:
    from torch._inductor.fx_passes.reinplace import inplaceable_foreach_ops

    return node.target in inplaceable_foreach_ops


def _at(position: int, args: Sequence[Any]) -> list[Any]:
    """The arguments of an op on lists at `position`."""
    return [each[position] if isinstance(each, (list, tuple)) else each for each in args]


def _nodes_in(args: Sequence[Any]) -> list[fx.Node]:
    return [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, fx.Node)]
