"""Copies of results that Inductor's passes have aliased, so that they have their own memory, as in the trace.

    z = mm(x, w); a = pow(z, 2); b = clone(z); return a, b        not        return a, z
    y = mul(x, 2); return clone(y), clone(y)                      not        return y, y

    t = clone(x); copy_(x, y); copy_(y, t)                            not        copy_(x, y); copy_(y, x)

The passes replace a copy by the value that it copies. Then the caller could change a value that the backward saves, two
results would be the same tensor, a result would be an argument once a write to the argument is made in place, and a write
would read what an earlier one has left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.fx as fx

from aotgrad.backends.graphs import inserting_before_writes, inserting_behind_inputs, replace_outputs
from aotgrad.backends.layouts import call_op
from aotgrad.graph.ends import outputs_of
from aotgrad.graph.memory_owners import owner_across_writes, writes_at_end


@contextlib.contextmanager
def keep_returned_copies(graph: fx.Graph, results: int) -> Iterator[None]:
    """Run passes inside; then copy each of the first `results` outputs that has moved into the memory of another value.

    What a write at the end reads is copied as in `keep_output_memory`.
    """
    nodes = set(graph.nodes)
    owners = {k: owner_across_writes(node) for k, node in enumerate(outputs_of(graph)[:results]) if is_computed(node)}
    yield
    outputs = list(outputs_of(graph))
    for k, owner in owners.items():
        if (now := owner_across_writes(outputs[k])) is not owner and now in nodes:
            outputs[k] = insert_clone(outputs[k])
    replace_outputs(graph, outputs)
    copy_overwritten_sources(graph)


@contextlib.contextmanager
def keep_output_memory(graph: fx.Graph) -> Iterator[None]:
    """Run passes inside; then copy outputs that newly share memory with an argument or with another output.

    What a write to an argument at the end reads from an argument that an earlier one has written to is copied, too. The
    copies are made before all these writes.
    """
    owners = [owner_across_writes(output) for output in outputs_of(graph)]
    yield
    copy_overwritten_sources(graph)
    outputs = list(outputs_of(graph))
    met: dict[fx.Node, fx.Node] = {}
    for k, (output, before) in enumerate(zip(outputs, owners, strict=True)):
        owner = owner_across_writes(output)
        if owner is None or before is None:
            continue
        is_new = owner.op == "placeholder" and before is not owner
        if is_new or met.setdefault(owner, before) is not before:
            outputs[k] = clone_before_writes(output)
    replace_outputs(graph, outputs)


def copy_overwritten_sources(graph: fx.Graph) -> None:
    """Copy what a write at the end reads from an argument that an earlier one has written to."""
    written: set[Any] = set()
    for write in reversed(writes_at_end(graph)):
        target, source, *others = write.args
        if owner_across_writes(source) in written:
            write.args = (target, clone_before_writes(cast(fx.Node, source)), *others)
        written.add(target)


def clone_before_writes(node: fx.Node) -> fx.Node:
    """A copy of a value as it is before the writes to arguments at the end."""
    with inserting_before_writes(node.graph):
        return call_op(torch.ops.aten.clone.default, node)


def insert_clone(node: fx.Node) -> fx.Node:
    """A copy of a node's value, before the writes to inputs at the end."""
    graph = node.graph
    with inserting_behind_inputs(graph) if node.op == "placeholder" else graph.inserting_after(node):
        copy = graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy


def is_computed(output: Any) -> bool:
    return isinstance(output, fx.Node) and output.op == "call_function" and isinstance(output.meta["val"], torch.Tensor)
