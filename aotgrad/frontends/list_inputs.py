"""Dynamo's graphs with lists among their inputs, as those of compiled autograd: a placeholder for each item.

l_inputs_ = [a, b];  l_inputs_[0] * l_inputs_[1]        ->      l_inputs__0, l_inputs__1 = a, b;  a * b
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch.fx as fx


def with_items(module: fx.GraphModule, inputs: Sequence[Any]) -> tuple[fx.GraphModule, list[Any]]:
    """A graph that takes the items of its list inputs, and these inputs."""
    flat = copy.copy(module)
    flat.graph = copy.deepcopy(module.graph)
    values: list[Any] = []
    for node, value in zip(flat.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if isinstance(value, list):
            replace_by_items(flat.graph, node, value)
            values += value
        else:
            values.append(value)
    flat.recompile()
    return flat, values


def replace_by_items(graph: fx.Graph, node: fx.Node, values: Sequence[Any]) -> None:
    with graph.inserting_before(node):
        items = [graph.placeholder(f"{node.name}_{k}") for k in range(len(values))]
    for read in list(node.users):
        position = cast(int, read.args[1])
        read.replace_all_uses_with(items[position])
        graph.erase_node(read)
    graph.erase_node(node)


def taking_lists(function: Callable) -> Callable:
    """`function` of the items of lists, as a function of the lists. It clears them: each item is freed at its last use."""

    def call(*args: Any) -> Any:
        values: list[Any] = []
        for arg in args:
            if isinstance(arg, list):
                values += arg
                arg.clear()
            else:
                values.append(arg)
        del args, arg
        return function(*values)

    return call
