"""Computes once what a training step computes from numbers of its state that are equal, and stay so.

    s = item(p + 1); t = item(q + 1); u = 0.9 ** s; v = 0.9 ** t        p and q are equal at entry, which is guarded
    becomes    n = p + 1; s = item(n); u = 0.9 ** s                     for both; n is the new value of p and of q

An optimizer has a tensor with the number of steps for each parameter, on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.ends import output_node, outputs_of
from aotgrad.graph.equality import call_key, key_of_arguments
from aotgrad.graph.node_tags import recompute_policy
from aotgrad.ir import JointGraph
from aotgrad.passes import ops
from aotgrad.slots import UpdatedInput

EqualNumbers = Callable[[Sequence[fx.Node]], Sequence[Sequence[fx.Node]]]
"""Groups numbers that are equal in this call, which becomes a condition for other calls."""


def share_equal_numbers(joint: JointGraph, require_equal: EqualNumbers) -> Mapping[Any, Any]:
    """Merge what is computed from equal numbers. Changes `joint` in place.

    Returns:
        For each symbol of a number that is read no more, the one that has its value.
    """
    graph, kinds = joint.module.graph, dict[Hashable, list[fx.Node]]()
    read = set() if joint.differentiable else read_numbers(graph)
    for node in graph.find_nodes(op="placeholder"):
        if node in read:
            kinds.setdefault((node.meta["val"].dtype, uses_of(node)), []).append(node)
    groups = [group for kind in kinds.values() for group in (require_equal(kind) if len(kind) > 1 else ())]
    for first, *others in groups:
        for other in others:
            other.replace_all_uses_with(first, delete_user_cb=is_no_output)
    return merge_calls(joint, {first for first, *_ in groups}) if groups else {}


def holds_host_numbers(node: fx.Node) -> bool:
    """Whether a value is a number on the host, or a list of these from one op on lists."""
    value = node.meta.get("val")
    if op_table.makes_new_list(node.target):
        return all(map(is_host_number, cast(list, value)))
    return is_host_number(value)


def is_host_number(value: Any) -> bool:
    is_number = isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu"
    return is_number and value.dtype.is_floating_point


def read_numbers(graph: fx.Graph) -> set[fx.Node]:
    """The numbers on the host that a float is read from, themselves or what is computed from them."""
    read: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        is_computed = holds_host_numbers(node) and (node.op == "placeholder" or ops.is_pure(node))
        if is_computed and any(user in read or reads_float(user) for user in node.users):
            read.add(node)
    return read


def reads_float(node: fx.Node) -> bool:
    return node.target is torch_compat.read_number and isinstance(node.meta.get("val"), torch.SymFloat)


def uses_of(node: fx.Node) -> Hashable:
    """What is computed from a number directly: numbers that are used in other ways are seldom equal for long."""
    return frozenset((user.target, len(user.all_input_nodes)) for user in node.users if user.op != "output")


def merge_calls(joint: JointGraph, numbers: Collection[fx.Node]) -> dict[Any, Any]:
    """Merge equal calls that compute floats, or numbers on the host, from some numbers. Returned tensors stay apart."""
    found, first_of, merged = set(numbers), dict[Hashable, fx.Node](), dict[fx.Node, fx.Node]()
    symbols: dict[Any, Any] = {}
    for node in joint.module.graph.nodes:
        if found.isdisjoint(node.all_input_nodes) or not is_mergeable(node) or (key := key_of_number(node)) is None:
            continue
        first = first_of.setdefault((key, recompute_policy(node)), node)
        found.add(first)
        if first is node:
            rename_symbols(node, symbols)
        else:
            merged[node] = first
            node.replace_all_uses_with(first, delete_user_cb=is_no_output)
            if reads_float(node):
                symbols[torch_compat.expression_of(node.meta["val"])] = torch_compat.expression_of(first.meta["val"])
    output = output_node(joint.module.graph)
    slots = zip(joint.signature.outputs, outputs_of(joint.module.graph), strict=True)
    output.args = (tuple(merged.get(node, node) if isinstance(slot, UpdatedInput) else node for slot, node in slots),)
    for node in merged:
        if not node.users:
            joint.module.graph.erase_node(node)
    return symbols


def key_of_number(node: fx.Node) -> Hashable | None:
    """Equal for equal calls, also for two items of an op on lists that are computed from equal numbers."""
    source = node.args[0] if op_table.is_getitem(node.target) else None
    if not isinstance(source, fx.Node) or not op_table.makes_new_list(source.target):
        return call_key(node)
    if any(map(is_vector, source.all_input_nodes)) or source.kwargs.keys() - {"alpha", "value"}:
        return call_key(node)
    place = cast(int, node.args[1])
    args = [arg[place] if isinstance(arg, (list, tuple)) else arg for arg in source.args]
    return key_of_arguments(source.target, args, source.kwargs)


def is_vector(node: fx.Node) -> bool:
    """Whether an argument of an op on lists has a number for each item."""
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.dim() == 1


def is_mergeable(node: fx.Node) -> bool:
    is_number = isinstance(node.meta.get("val"), torch.SymFloat) or holds_host_numbers(node)
    return is_number and (reads_float(node) or ops.is_pure(node))


def rename_symbols(node: fx.Node, symbols: Mapping[Any, Any]) -> None:
    """Let the value of a float that is computed from others tell from which: some were replaced."""
    if isinstance(node.meta["val"], torch.SymFloat) and not reads_float(node):
        expression = torch_compat.expression_of(node.meta["val"]).xreplace(symbols)
        node.meta["val"] = torch_compat.symbolic_number(torch_compat.fake_mode_of(node.graph), "float", expression)


def is_no_output(user: fx.Node) -> bool:
    return user.op != "output"
