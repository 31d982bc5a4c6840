"""Whose memory the value of a node lies in.

    t = x.t(); a, b = t.split(1); c = a.sin()        memory_owner(b): x        memory_owner(c): c

A view lies in the memory of its first argument; `op_table.is_view` decides which ops are views. An item of several views
lies in the memory that the views share. The stages have functional graphs, so all other ops return new memory. Inductor's
passes introduce writes in place, whose results lie in the memory written to: `owner_across_writes` follows them, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph import op_table


def viewed_node(node: fx.Node) -> fx.Node | None:
    """The argument that a node is a view or an item of; `None` if the value lies in memory of its own."""
    first = node.args[0] if node.args else None
    if not isinstance(first, fx.Node):
        return None
    return first if op_table.is_view(first.target if op_table.is_getitem(node.target) else node.target) else None


def memory_owner(node: Any) -> Any:
    """The node whose memory the value of `node` lies in; anything but a node itself."""
    while isinstance(node, fx.Node) and (viewed := viewed_node(node)) is not None:
        node = viewed
    return node


def memory_owners(nodes: Iterable[fx.Node], separate: Collection[fx.Node] = ()) -> dict[fx.Node, fx.Node]:
    """The owner of the memory of each node; views in `separate` count as owners. Arguments must precede their users."""
    owners: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        viewed = None if node in separate else viewed_node(node)
        owners[node] = node if viewed is None else owners[viewed]
    return owners


def readers_of_memory(owners: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """The nodes that read the memory of each owner, in order; views are read where they are used.

    Args:
        owners: of nodes in order, see `memory_owners`.
    """
    readers: dict[fx.Node, list[fx.Node]] = {}
    for node in owners:
        if owners[node] is node:
            for owner in {owners[source] for source in node.all_input_nodes}:
                readers.setdefault(owner, []).append(node)
    return readers


def writes_at_end(graph: fx.Graph) -> list[fx.Node]:
    """The `copy_` nodes into placeholders directly before the output, the last one first."""
    copies: list[fx.Node] = []
    for node in list(reversed(graph.nodes))[1:]:
        target: Any = node.args[0] if node.target is torch.ops.aten.copy_.default else node
        if target is node or target.op != "placeholder" or node.users:
            break
        copies.append(node)
    return copies


def owner_across_writes(value: Any) -> fx.Node | None:
    """The node or input that owns the memory of a tensor, in a graph with writes in place; `None` if it is no tensor."""
    if not isinstance(value, fx.Node) or not isinstance(value.meta.get("val"), torch.Tensor):
        return None
    while (source := _viewed_or_written(value)) is not None:
        value = source
    return value


def _viewed_or_written(node: fx.Node) -> fx.Node | None:
    """The value that a node is a view or an item of, or writes to."""
    is_item = op_table.is_getitem(node.target)
    op: Any = node.args[0] if is_item else node
    if not op.args or not _returns_argument(op.target):
        return None
    source: Any = op.args[0]
    if is_item and isinstance(source, (list, tuple)):
        position: Any = node.args[1]
        source = source[position]
    return source if isinstance(source, fx.Node) else None


def _returns_argument(target: Any) -> bool:
    """Whether an op returns views or what it writes to; a write to a list returns nothing, but its items are the list's."""
    if op_table.is_view(target):
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    schema = target._schema
    return any(result.alias_info is not None for result in schema.returns) or (schema.is_mutable and not schema.returns)
