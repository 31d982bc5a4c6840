"""Graphs of `torch.fx`: names of nodes, the signature of the generated code, and checks in the graph."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx as fx
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.passes.runtime_assert import insert_deferred_runtime_asserts

from aotgrad.torch_compat.fakes import new_fake_mode
from aotgrad.torch_compat.shapes import deferred_checks


def pass_counts(graphs: Iterable[fx.Graph]) -> set[Any]:
    """The symbols for how many iterations' results a loop keeps: at least one, its argument if it runs no iteration."""
    loop = torch.ops.higher_order.while_loop_stack_output
    nodes = (node for graph in graphs for node in graph.nodes if node.target is operator.getitem)
    return {node.meta["val"].size(0).node.expr for node in nodes if node.args[0].target is loop}


def insert_deferred_checks(module: fx.GraphModule) -> None:
    """Add ops to a traced graph that raise where torch's assumptions about values do not hold."""
    mode = fake_mode_of(module.graph)
    if mode is not None and deferred_checks(mode):
        insert_deferred_runtime_asserts(module, mode.shape_env, "checks")


def name_of_node(graph: fx.Graph, op: Any) -> str:
    """The name of an op's node, before a number makes it unique."""
    return graph._target_to_str(op.overloadpacket.__name__)


def new_node(graph: fx.Graph, op: str, target: Any, args: Any, kwargs: Any, name: str, type_expr: Any = None) -> fx.Node:
    """`graph.create_node` without its search of the arguments for symbolic numbers, which takes most of its time."""
    if not _are_nodes_added_as_known() or getattr(graph.owning_module, "_create_node_hooks", None):
        return graph.create_node(op, target, args, kwargs, name, type_expr)
    name = graph._graph_namespace.create_name(name, None)
    node = fx.Node(graph, name, op, target, args or (), kwargs or {}, type_expr)
    graph._graph_namespace.associate_name_with_obj(name, node)
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    return node


@functools.cache
def _are_nodes_added_as_known() -> bool:
    """Whether a graph of this torch has, after `create_node`, what `new_node` changes, and nothing else."""
    graph = fx.Graph()
    before = {name: repr(value) for name, value in vars(graph).items()}
    graph.create_node("placeholder", "x")
    changed = {name for name, value in vars(graph).items() if repr(value) != before[name]}
    return changed == {"_len"} and {"_graph_namespace", "_insert", "_find_nodes_lookup_table"} <= set(dir(graph))


def erase_with_name(graph: fx.Graph, node: fx.Node) -> None:
    """Erase a node and free its name for a later one."""
    graph.erase_node(node)
    graph._graph_namespace._used_names.discard(node.name)


def fake_mode_of(graph: fx.Graph) -> FakeTensorMode:
    """The fake mode of the tensors in a graph; a new one if there are none."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return new_fake_mode()


def returns_pytree(graph: fx.Graph, names: Sequence[str], in_spec: pytree.TreeSpec, out_spec: pytree.TreeSpec) -> None:
    """Make the generated function take and return nested values; `names` are its parameters."""
    from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo

    graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(list(names), in_spec, out_spec)))


def takes_plain_arguments(graph: fx.Graph) -> bool:
    """Whether the generated code takes the placeholders and returns the output without pytrees."""
    return type(graph._codegen) is fx.graph.CodeGen
