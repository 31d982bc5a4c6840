"""Tensors that a function closed over become inputs of the graph for Inductor.

    y = mul(x, weight)  with an attribute `weight`      ->      y = mul(x, attribute_0), called with the tensor

A function reads such a tensor at every call. Inductor treats an attribute as a constant: it folds what depends on it,
writes the values of a small one into its kernels, and copies a large one. What our own passes have folded is a constant.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.fx as fx

from aotgrad.backends.graphs import inserting_behind_inputs
from aotgrad.graph.closed_over import FOLDED


def closed_over_tensors(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """The tensors that a function closed over, by attribute, in an order that passes do not change."""
    names = sorted({str(node.target) for node in module.graph.find_nodes(op="get_attr")})
    values = {name: functools.reduce(getattr, name.split("."), module) for name in names if not name.startswith(FOLDED)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


@contextlib.contextmanager
def lift_closed_over(module: fx.GraphModule) -> Iterator[None]:
    """Inside, the tensors that the function closed over are the last inputs of the graph."""
    inputs = [
        (name, attribute_to_input(module.graph, name, f"attribute_{k}"))
        for k, name in enumerate(closed_over_tensors(module))
    ]
    yield
    for name, placeholder in inputs:
        input_to_attribute(placeholder, name)


def attribute_to_input(graph: fx.Graph, name: str, input_name: str) -> fx.Node:
    """Replace all nodes of an attribute by one input."""
    nodes = graph.find_nodes(op="get_attr", target=name)
    with inserting_behind_inputs(graph):
        placeholder = graph.placeholder(input_name)
    placeholder.meta = dict(nodes[0].meta)
    for node in nodes:
        node.replace_all_uses_with(placeholder)
        graph.erase_node(node)
    return placeholder


def input_to_attribute(placeholder: fx.Node, name: str) -> None:
    """Replace an input by the node of an attribute."""
    graph = placeholder.graph
    with inserting_behind_inputs(graph):
        attribute = graph.create_node("get_attr", name)
    attribute.meta = dict(placeholder.meta)
    placeholder.replace_all_uses_with(attribute)
    graph.erase_node(placeholder)


def bind_tensors(compiled: Callable, tensors: Mapping[str, torch.Tensor]) -> Callable:
    """A compiled graph that passes `tensors` as its last inputs."""
    if not tensors:
        return compiled

    def call(args: list) -> Any:
        inputs = [*args, *tensors.values()]
        args.clear()
        return compiled(inputs)

    call._boxed_call = True
    return call
