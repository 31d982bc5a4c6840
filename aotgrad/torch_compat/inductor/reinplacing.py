"""Writes in place in Inductor: the pass that makes them of functional ones, and their code."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.fx as fx
import torch.utils._pytree as pytree


def reads_of_targets_checked() -> contextlib.AbstractContextManager[None]:
    """Inside, a write stays functional whose other arguments are read from what it would write to.

    Torch looks at what reads the target after the write, and not at what the write itself reads: views of the target, and
    what is computed from it in the same kernel.
    """
    return _kept_functional(_reads_what_it_writes)


def writes_to_converted_views_kept() -> contextlib.AbstractContextManager[None]:
    """Inside, a write to chosen elements of a view as another dtype stays functional.

    Torch would write to the memory of the view as what that was made as, and convert the numbers to that dtype.
    """
    return _kept_functional(_writes_to_a_converted_view)


@contextlib.contextmanager
def values_that_are_written_kept_apart() -> Iterator[None]:
    """Inside, what is written in place is computed into memory of its own first, if it reads other elements of the target.

    Torch does so for some ops, but not where views stand between the op and the write.
    """
    from torch._inductor import ir

    layout = ir.MutationLayoutSHOULDREMOVE
    realize = layout.realize_into.__func__

    def realize_into(cls: type, src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        dst.realize()
        if _reads_other_elements(src, dst):
            src = ir.Pointwise.create(
                device=src.get_device(), dtype=src.get_dtype(), inner_fn=src.make_loader(), ranges=src.get_size()
            )
            src.realize()
        return realize(cls, src, dst, *args, **kwargs)

    with mock.patch.object(layout, "realize_into", classmethod(realize_into)):
        yield


def _reads_other_elements(source: Any, target: Any) -> bool:
    """Whether one element of a value is computed from elements of a target elsewhere."""
    from torch._inductor import ir
    from torch._inductor.dependencies import extract_read_writes

    with mock.patch.object(ir.FlexibleLayout, "allow_indexing", True):  # strides that may still change
        read = extract_read_writes(source.make_loader(), source.get_size()).reads
        own = extract_read_writes(target.make_loader(), target.get_size()).reads
    return any(each.name == target.get_name() and each not in own for each in read)


@contextlib.contextmanager
def _kept_functional(is_concerned: Callable[[fx.Node], bool]) -> Iterator[None]:
    """Inside, no write that `is_concerned` is turned into one in place."""
    from torch._inductor.fx_passes import reinplace

    make_in_place = reinplace.reinplace_inplaceable_ops_core

    def make_safe_ones_in_place(graph: fx.Graph) -> None:
        with _disguised([node for node in graph.nodes if is_concerned(node)]):
            make_in_place(graph)

    with mock.patch.object(reinplace, "reinplace_inplaceable_ops_core", make_safe_ones_in_place):
        yield


@contextlib.contextmanager
def _disguised(nodes: Sequence[fx.Node]) -> Iterator[None]:
    """Inside, no pass knows what the nodes call."""
    targets = [node.target for node in nodes]
    for node in nodes:
        node.target = _unknown
    try:
        yield
    finally:
        for node, target in zip(nodes, targets, strict=True):
            node.target = target


def _unknown(*_: Any) -> None:
    """What a disguised node calls."""


def _writes_to_a_converted_view(node: fx.Node) -> bool:
    if node.target not in _WRITES_TO_CHOSEN_ELEMENTS:
        return False
    target: Any = node.args[0]
    while isinstance(target.target, torch._ops.OpOverload) and target.target.is_view:
        if target.target is torch.ops.aten.view.dtype:
            return True
        target = target.args[0]
    return False


def _reads_what_it_writes(node: fx.Node) -> bool:
    """Whether an op on a list, or one that writes to chosen elements, would read elements that it has written to.

    Or whether it is on complex lists, of whose writes in place Inductor cannot make code.
    """
    if node.target in _WRITES_TO_CHOSEN_ELEMENTS:
        return _is_read_from(node.args[:1], _nodes_in(node.args[1:]), of=None)
    if not _is_on_lists(node):
        return False
    targets: Any = node.args[0]
    if any(target.meta["val"].is_complex() for target in targets):
        return True
    return any(_is_read_from(targets, _nodes_in(_at(k, node.args[1:])), of=target) for k, target in enumerate(targets))


_WRITES_TO_CHOSEN_ELEMENTS = (torch.ops.aten.index_put.default, torch.ops.aten._unsafe_index_put.default)


def _is_read_from(targets: Sequence[fx.Node], values: Sequence[fx.Node], of: fx.Node | None) -> bool:
    """Whether one of `values` is computed from the memory of `targets`, other than from `of` element by element."""
    from torch._inductor.fx_utils import get_node_storage

    storages = {get_node_storage(target) for target in targets} - {None}
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
    """What a value is computed from, and whether each element is from the elements at its own place."""
    made_by = node.args[0] if node.target is operator.getitem else None
    if isinstance(made_by, fx.Node) and _is_on_lists(made_by):
        return _nodes_in(_at(node.args[1], made_by.args)), True
    return node.all_input_nodes, torch.Tag.pointwise in getattr(node.target, "tags", ())


def _is_on_lists(node: fx.Node) -> bool:
    from torch._inductor.fx_passes.reinplace import inplaceable_foreach_ops

    return node.target in inplaceable_foreach_ops


def _at(position: int, args: Sequence[Any]) -> list[Any]:
    """The arguments of an op on lists that it takes for the elements at `position`."""
    return [each[position] if isinstance(each, (list, tuple)) else each for each in args]


def _nodes_in(args: Sequence[Any]) -> list[fx.Node]:
    return [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, fx.Node)]
