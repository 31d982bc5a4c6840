"""Symbolic zeros: remove from a backward graph what only undefined tangents need.

Eager does not run an autograd node that no gradient reaches, and what only that node computes is `None`. Here, a value is
undefined if all its arguments that depend on tangents are. A sum drops undefined terms. Any other op with an undefined
argument beside a defined one gets real zeros.

    grads = [mul(t1, w), add(mul(t1, a), mul(t2, b))]    with t2 undefined:    [mul(t1, w), mul(t1, a)]

Source: undefined gradients in TorchScript's symbolic autodiff (`AutogradAdd`, `GradOf`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph.ends import outputs_of

aten = torch.ops.aten
SUMS = frozenset({aten.add.Tensor, aten.sub.Tensor})


class CannotMaterialize(Exception):
    """The graph needs zeros of a symbolic size, which only the caller can make."""


def remove_undefined(graph: fx.Graph, undefined: Collection[fx.Node], tangents: Collection[fx.Node]) -> None:
    """Propagate undefined tangents through `graph`, in place. Undefined outputs become `None`.

    Args:
        graph: a functional backward graph.
        undefined: the placeholders of undefined tangents.
        tangents: the placeholders of all tangents.

    Raises:
        CannotMaterialize: the graph needs zeros of symbolic size; `graph` is then invalid.
    """
    _, zero = tangent_dependents(graph, undefined, tangents)
    for node in list(graph.nodes):
        missing = [arg for arg in node.all_input_nodes if arg in zero]
        if node.op == "output":
            node.args = (fx.map_arg(node.args[0], lambda arg: None if arg in zero else arg),)
        elif missing and node not in zero:
            drop_missing(graph, node, missing)
    for node in reversed(graph.nodes):  # also checks, which are not dead code but have no users
        if node in zero and node.op == "call_function" and not node.users:
            graph.erase_node(node)


def undefined_outputs(graph: fx.Graph, undefined: Collection[fx.Node], tangents: Collection[fx.Node]) -> list[bool]:
    """Whether each output of `graph` is undefined; leaves the graph unchanged."""
    _, zero = tangent_dependents(graph, undefined, tangents)
    return [node is None or node in zero for node in outputs_of(graph)]


def tangent_dependents(
    graph: fx.Graph, undefined: Collection[fx.Node], tangents: Collection[fx.Node]
) -> tuple[set[fx.Node], set[fx.Node]]:
    """The nodes that depend on tangents, and those among them that depend on undefined tangents only."""
    dependent, zero = set(tangents), set(undefined)
    for node in graph.nodes:
        sources = [arg for arg in node.all_input_nodes if arg in dependent]
        if sources:
            dependent.add(node)
            if all(source in zero for source in sources):
                zero.add(node)
    return dependent, zero


def drop_missing(graph: fx.Graph, node: fx.Node, missing: Collection[fx.Node]) -> None:
    """Replace the undefined arguments of `node`: a sum becomes its other term, other ops get zeros."""
    term = other_term(node, missing)
    if term is not None and (copy := restride(graph, node, term)) is not None:
        node.replace_all_uses_with(copy)
        return
    with graph.inserting_before(node):
        zeros = {arg: materialize(graph, arg) for arg in missing}
    node.args = fx.map_arg(node.args, lambda arg: zeros.get(arg, arg))
    node.kwargs = fx.map_arg(node.kwargs, lambda arg: zeros.get(arg, arg))


def other_term(node: fx.Node, missing: Collection[fx.Node]) -> fx.Node | None:
    """The defined term of a sum if it equals the sum; `None` for `0 - x`, a type promotion or a broadcast."""
    if node.target not in SUMS or node.kwargs or len(node.args) != 2:
        return None
    left, right = node.args
    if right in missing:
        term = left
    elif node.target is aten.add.Tensor:
        term = right
    else:
        return None
    return term if isinstance(term, fx.Node) and has_same_type(term.meta["val"], node.meta["val"]) else None


def has_same_type(left: Any, right: Any) -> bool:
    return left.dtype == right.dtype and torch_compat.known_equal(left.size(), right.size())


def restride(graph: fx.Graph, node: fx.Node, term: fx.Node) -> fx.Node | None:
    """`term` with the strides that later ops were traced for; `None` if these are neither its own nor contiguous."""
    value = node.meta["val"]
    if torch_compat.known_equal(term.meta["val"].stride(), value.stride()):
        return term
    if not torch_compat.known_contiguous(value):
        return None
    with graph.inserting_before(node):
        copy = graph.call_function(aten.clone.default, (term,), {"memory_format": torch.contiguous_format})
    copy.meta = {**node.meta}
    return copy


def materialize(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """Zeros like the value of `node`."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or torch_compat.has_symbolic_shape(value):
        raise CannotMaterialize(node.name)
    zeros = graph.call_function(aten.full.default, (list(value.size()), 0), {"dtype": value.dtype, "device": value.device})
    zeros.meta["val"] = value
    return zeros
