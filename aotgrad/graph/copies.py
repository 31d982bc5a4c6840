"""Copies of nodes and of graphs, as those of `torch.fx`, in less time.

    copies = {x: y}; results = copy_nodes(graph, source, copies)        nodes of `source` but x, in `graph`, which reads y

In: a graph, the nodes to copy, and what stands for their arguments. Out: new nodes with copies of `meta`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph.ends import output_node
from aotgrad.graph.lazy_module import LazyGraphModule


def copy_node(graph: fx.Graph, node: fx.Node, argument: Callable[[fx.Node], Any]) -> fx.Node:
    """A copy of a node at the insert point of `graph`; `argument` gives what its arguments become."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), argument)
    copied = torch_compat.new_node(graph, node.op, node.target, args, kwargs, node.name, node.type)
    copied.meta = copy.copy(node.meta)
    return copied


def copy_nodes(graph: fx.Graph, source: fx.Graph, copies: dict[fx.Node, Any]) -> Any:
    """Copy all nodes of `source` that are not in `copies`, which gets them.

    Returns:
        What the output of `source` returns, in terms of the copies.
    """
    argument = copies.__getitem__
    for node in source.nodes:
        if node.op == "output":
            return fx.map_arg(node.args[0], argument)
        if node not in copies:
            copies[node] = copy_node(graph, node, argument)
    return None


def copy_graph(source: fx.Graph, copies: dict[fx.Node, Any] | None = None) -> fx.Graph:
    """A graph with the same nodes and results; `copies` gets the node of each node."""
    graph = fx.Graph()
    output = graph.output(copy_nodes(graph, source, {} if copies is None else copies))
    output.meta = copy.copy(output_node(source).meta)
    return graph


def copy_graph_module(module: fx.GraphModule) -> fx.GraphModule:
    """A module with its own graph and node metadata, that shares parameters and traced values with `module`."""
    return LazyGraphModule(module, copy_graph(module.graph))
