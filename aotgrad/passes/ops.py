"""Facts about nodes, for passes.

In: a node or its target. Out: yes or no. Facts for every stage are in `aotgrad.graph.op_table`; the tables here list the ops
that passes can compute or merge.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table

aten = torch.ops.aten

CREATION_FROM_NUMBERS = frozenset(
    {
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.full.default,
        aten.ones.default,
        aten.scalar_tensor.default,
        aten.zeros.default,
    }
)
"""Ops whose values follow from numbers in the graph."""

CREATION_LIKE = frozenset(
    {
        aten.full_like.default,
        aten.new_full.default,
        aten.new_ones.default,
        aten.new_zeros.default,
        aten.ones_like.default,
        aten.zeros_like.default,
    }
)
"""Ops whose values follow from numbers, with the sizes and dtype of an argument."""

GEOMETRIC_VIEWS = frozenset(
    {
        torch_compat.unsafe_view,
        aten.alias.default,
        aten.detach.default,
        aten.diagonal.default,
        aten.expand.default,
        aten.permute.default,
        aten.select.int,
        aten.slice.Tensor,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unbind.int,
        aten.unfold.default,
        aten.unsqueeze.default,
        aten.view.default,
    }
)
"""Views that keep every element: two views of one tensor with equal sizes, strides and offset are the same value.

Not `as_strided`, whose offset is absolute, nor views as another dtype.
"""

DATA_DEPENDENT_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
MASKS = (torch.bool, torch.uint8)


def args_of(node: fx.Node) -> Any:
    """The arguments of a call, untyped."""
    return node.args


def run(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """The result of the op of a node for these arguments."""
    assert callable(node.target), f"{node} is no call of a function"
    return node.target(*args, **kwargs)


def is_aten(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload)


def node_is_opaque(node: fx.Node) -> bool:
    """Whether the node runs an unknown graph or module of its own."""
    return node.op in ("call_module", "call_method") or op_table.is_opaque(node.target)


def node_has_effect(node: fx.Node) -> bool:
    """Whether the node does more than compute its result: a write, a check, a random draw, a message."""
    if node.op == "call_function" and op_table.is_kept_when_dead(node.target):
        return True
    if torch_compat.is_impure(node):
        return True
    return any(has_effects_inside(branch) for branch in branches(node))


def has_effects_inside(module: fx.GraphModule) -> bool:
    return any(node_has_effect(node) for node in module.graph.nodes if node.op not in ("placeholder", "output"))


def branches(node: fx.Node) -> list[fx.GraphModule]:
    """The graphs that a control-flow op calls."""
    if not op_table.is_opaque(node.target) or node.graph.owning_module is None:
        return []
    names = [str(arg.target) for arg in node.all_input_nodes if arg.op == "get_attr"]
    modules = [getattr(node.graph.owning_module, name, None) for name in names]
    return [module for module in modules if isinstance(module, fx.GraphModule)]


def is_pure(node: fx.Node) -> bool:
    """Whether the result depends on the arguments alone, so that equal calls can be merged."""
    if node.op != "call_function" or node_is_opaque(node):
        return False
    if not is_aten(node.target):
        return op_table.is_getitem(node.target) or op_table.is_symbolic_value(node)
    return not (op_table.is_uninitialized(node.target) or has_size_of_its_own(node) or node_has_effect(node))


def has_size_of_its_own(node: fx.Node) -> bool:
    """Whether the result is a number read from a tensor, or may have such a number as size: no other node has it.

    An index by positions has their size; only a mask makes a new size.
    """
    if node.target is aten.index.Tensor and all(map(has_known_size, (node, *node.all_input_nodes))):
        return any(index is not None and index.meta["val"].dtype in MASKS for index in args_of(node)[1])
    return _depends_on_data(node.target)


@functools.cache
def _depends_on_data(target: Any) -> bool:
    return not DATA_DEPENDENT_TAGS.isdisjoint(getattr(target, "tags", ()))


def has_known_size(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not torch_compat.has_symbolic_shape(value)


def computes(node: fx.Node) -> bool:
    """Whether the node is work for a backend: no view, tuple item, number, or tensor of equal values."""
    if node.op != "call_function" or op_table.is_getitem(node.target) or op_table.is_symbolic_value(node):
        return False
    return not op_table.is_view(node.target) and not op_table.is_creation(node.target)
