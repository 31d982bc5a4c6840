"""Rewrites a graph in one sweep: each node is visited once, after its arguments were replaced.

    replace(graph, visit)        visit(node) returns the earlier node that `node` equals, or None

The outputs of the graph keep their nodes, even where other uses of these nodes are replaced. So an output never becomes the
same tensor as an input or another output.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph.geometry import same_value_type
from aotgrad.graph.node_tags import recompute_policy
from aotgrad.passes import ops


def replace(graph: fx.Graph, visit: Callable[[fx.Node], fx.Node | None]) -> dict[fx.Node, fx.Node]:
    """Visit each node in order. If `visit` returns another node, later nodes read that one. Returns the replacements."""
    replaced: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "output":
            break
        if not replaced.keys().isdisjoint(node.all_input_nodes):
            node.args = fx.map_arg(node.args, lambda arg: replaced.get(arg, arg))
            node.kwargs = fx.map_arg(node.kwargs, lambda arg: replaced.get(arg, arg))
        other = visit(node)
        if other is not None:
            replaced[node] = other
    return replaced


def fill_in_values(module: fx.GraphModule) -> None:
    """Compute the traced value (`meta["val"]`) of nodes that lack one, from their arguments."""
    for node in module.graph.nodes:
        if "val" in node.meta:
            continue
        if node.op == "call_function":
            node.meta["val"] = traced_value(node)
        elif node.op == "get_attr" and isinstance(constant := operator.attrgetter(node.target)(module), torch.Tensor):
            node.meta["val"] = torch_compat.fake_mode_of(module.graph).from_tensor(constant, static_shapes=True)


def traced_value(node: fx.Node) -> Any:
    """The result of the node for the traced values of its arguments."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: arg.meta.get("val"))
    with torch_compat.bare_evaluation(), torch_compat.fake_mode_of(node.graph):
        return ops.run(node, args, kwargs)


def alike(one: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes, whose results are strided tensors, differ only in their values and the memory of these."""
    a, b = one.meta.get("val"), other.meta.get("val")
    is_strided = isinstance(a, torch.Tensor) and a.layout is torch.strided
    return is_strided and same_value_type(a, b) and recompute_policy(one) == recompute_policy(other)
