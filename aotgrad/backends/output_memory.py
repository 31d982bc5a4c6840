"""Results that have memory of their own as traced, whatever a backend's passes have put in their place.

    with output_memory_kept(graph):
        run_passes(graph)       # of `return y.clone(), y.clone()`, one takes out both clones, and returns `y` twice

The second result is copied. So is one that has become an argument, since a pass makes a write to it in place.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx as fx

from aotgrad.backends.graphs import outputs_of, replace_outputs
from aotgrad.backends.layouts import called


@contextlib.contextmanager
def output_memory_kept(graph: fx.Graph) -> Iterator[None]:
    """After passes that run inside, outputs are copied that have come to share memory with an argument or other outputs."""
    owners = [owner_of(output) for output in outputs_of(graph)]
    yield
    outputs = list(outputs_of(graph))
    (end,) = graph.find_nodes(op="output")
    met: dict[fx.Node, fx.Node] = {}
    for k, (output, before) in enumerate(zip(outputs, owners, strict=True)):
        owner = owner_of(output)
        if owner is None or before is None:
            continue
        is_new = owner.op == "placeholder" and before is not owner
        if is_new or met.setdefault(owner, before) is not before:
            with graph.inserting_before(end):
                outputs[k] = called(torch.ops.aten.clone.default, output)
    replace_outputs(graph, outputs)


def owner_of(output: Any) -> fx.Node | None:
    """The node that makes the memory of a tensor, or the argument that has it."""
    if not isinstance(output, fx.Node) or not isinstance(output.meta.get("val"), torch.Tensor):
        return None
    while (source := source_of_view(output)) is not None:
        output = source
    return output


def source_of_view(node: fx.Node) -> fx.Node | None:
    """What a node is a view of, or an item of, or has written to."""
    is_item = node.target is operator.getitem
    made_by: Any = node.args[0] if is_item else node
    if not made_by.args or not returns_its_argument(made_by.target):
        return None
    source: Any = made_by.args[0]
    if is_item and isinstance(source, (list, tuple)):
        position: Any = node.args[1]
        source = source[position]
    return source if isinstance(source, fx.Node) else None


def returns_its_argument(target: Any) -> bool:
    """Whether an op makes views, or writes in place; one that writes to a list returns nothing, but stands for the list."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    schema = target._schema
    return any(result.alias_info is not None for result in schema.returns) or (schema.is_mutable and not schema.returns)
