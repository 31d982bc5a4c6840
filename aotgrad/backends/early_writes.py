"""Writes inputs as soon as their early updates are computed, where Inductor would compute and write them at the end.

    p1 = add(w1, g1); g2 = mm(..); copy_(w1, p1)        ->      p1 = add(w1, g1); copy_(w1, p1); g2 = mm(..)

`EarlyUpdates` notes which updates are early. Inductor computes a new value of an input where it writes the input.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.fx as fx

from aotgrad.graph.ends import output_node
from aotgrad.graph.memory_owners import owner_across_writes, writes_at_end


@contextlib.contextmanager
def write_early_updates(graph: fx.Graph) -> Iterator[None]:
    """Run passes inside; then move the writes of early updates behind the last node that reads the input."""
    yield
    if writes := [write for write in reversed(writes_at_end(graph)) if is_early(write.args[1])]:
        place = {node: k for k, node in enumerate(graph.nodes)}
        last: dict[Any, fx.Node] = {}
        *_, last_input = graph.find_nodes(op="placeholder")
        for node in place.keys() - {output_node(graph)}:
            sources = node.args[1:2] if node in writes else node.all_input_nodes  # a write does not read its target
            for owner in set(map(owner_across_writes, sources)):
                last[owner] = max(last.get(owner, node), node, key=place.__getitem__)
        for write in writes:
            target, value, *_ = write.args
            assert isinstance(value, fx.Node)
            max(last.get(target, value), value, last_input, key=place.__getitem__).append(write)


def is_early(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.meta.get("early_update", False)
