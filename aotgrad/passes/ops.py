"""Facts about the nodes of a graph that passes ask for.

In: a node or its target. Out: yes or no. Schemas and tags answer for new and custom ops; the tables name the ops of which
they do not say enough.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat

aten = torch.ops.aten

COLLECTIVES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional"})
"""Namespaces of ops that every rank must run, each as often as the others."""

CREATION = frozenset(
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
"""The same, with sizes and dtype of a tensor whose values do not matter."""

UNINITIALIZED = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_permuted.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)

ABSOLUTE_VIEWS = frozenset({"aten::as_strided", "aten::as_strided_scatter", "aten::as_strided_copy"})
"""Ops that count from the start of the storage that their argument lies in."""

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
"""Views that keep every element as it is: two of one tensor with equal sizes, strides and offset are the same value.

Not `as_strided`, whose offset is absolute, nor the views that read the same bytes as other numbers.
"""

DATA_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, bool, int, float)


def arguments(node: fx.Node) -> Any:
    """The arguments of a call; what types they have, its op knows."""
    return node.args


def run(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """What the op of a node returns for these arguments."""
    assert callable(node.target), f"{node} is no call of a function"
    return node.target(*args, **kwargs)


def is_aten(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload)


def is_opaque(node: fx.Node) -> bool:
    """Whether the node runs a graph or module of its own, about which nothing is known here."""
    return node.op in ("call_module", "call_method") or isinstance(node.target, torch._ops.HigherOrderOperator)


def is_view(target: Any) -> bool:
    """Whether the result is in the memory of the first argument, also for ops that return several views."""
    return target is torch_compat.unsafe_view or torch_compat.is_view_op(target)


def is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), NUMBERS)


def is_random(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def is_absolute(target: Any) -> bool:
    return is_aten(target) and target.name().split(".")[0] in ABSOLUTE_VIEWS


def has_effect(node: fx.Node) -> bool:
    """Whether running the node does more than compute its result: a write, a check, a random draw, a message."""
    if getattr(node.target, "namespace", None) in COLLECTIVES or is_random(node.target) or node.is_impure():
        return True
    return any(has_effects_inside(branch) for branch in branches(node))


def has_effects_inside(module: fx.GraphModule) -> bool:
    return any(has_effect(node) for node in module.graph.nodes if node.op not in ("placeholder", "output"))


def branches(node: fx.Node) -> list[fx.GraphModule]:
    """The graphs that a control-flow op calls."""
    if not isinstance(node.target, torch._ops.HigherOrderOperator) or node.graph.owning_module is None:
        return []
    names = [str(arg.target) for arg in node.all_input_nodes if arg.op == "get_attr"]
    modules = [getattr(node.graph.owning_module, name, None) for name in names]
    return [module for module in modules if isinstance(module, fx.GraphModule)]


def is_pure(node: fx.Node) -> bool:
    """Whether the result depends on nothing but the arguments, so that two equal calls are one."""
    if node.op != "call_function" or is_opaque(node):
        return False
    if node.target is operator.getitem or not is_aten(node.target):
        return node.target is operator.getitem or is_number(node)
    if node.target in UNINITIALIZED or any(tag in getattr(node.target, "tags", ()) for tag in DATA_DEPENDENT):
        return False
    return not has_effect(node)


def computes(node: fx.Node) -> bool:
    """Whether the node is work for a backend: no view, no item of a tuple, no number, no tensor of equal values."""
    if node.op != "call_function" or node.target is operator.getitem or is_number(node):
        return False
    return not is_view(node.target) and node.target not in CREATION | CREATION_LIKE | UNINITIALIZED
