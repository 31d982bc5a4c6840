"""Hides from Inductor's passes that a result is only a part of a value, so that the result keeps the memory of the whole.

    y = zeros(8); view = y[4:]; y.as_strided_((2,), (1,)); return y, view      the graph returns as_strided(zeros(8), ...)

The other results are made as views of the returned memory, and reach beyond the part. The passes would fold a part of a
constant to a smaller constant, `full(2)`. They see a graph that returns the whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.backends.graphs import outputs_of, replace_outputs
from aotgrad.graph.memory_owners import memory_owner, viewed_node


@contextlib.contextmanager
def keep_memory_of_parts(graph: fx.Graph, results: int) -> Iterator[None]:
    """Run passes inside; meanwhile the graph returns the whole in place of each of the first `results` outputs."""
    outputs = list(outputs_of(graph))
    parts = {k: node for k, node in enumerate(outputs[:results]) if is_part(node)}
    chains = {k: views_to(node) for k, node in parts.items()}
    numbers = list(dict.fromkeys(number for chain in chains.values() for view in chain for number in numbers_of(view)))
    replace_outputs(graph, [memory_owner(node) if k in parts else node for k, node in enumerate(outputs)] + numbers)
    yield
    after = list(outputs_of(graph))
    known = dict(zip(numbers, after[len(outputs) :], strict=True))
    (end,) = graph.find_nodes(op="output")
    with graph.inserting_before(end):
        for k, chain in chains.items():
            after[k] = repeat_views(chain, after[k], known)
    replace_outputs(graph, after[: len(outputs)])


def is_part(output: Any) -> bool:
    """Whether an output is a view of a computed value that has more memory than the view shows."""
    value = output.meta.get("val") if isinstance(output, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or viewed_node(output) is None:
        return False
    (room,) = torch_compat.hints([value.untyped_storage().nbytes()])
    (shown,) = torch_compat.hints([value.numel() * value.element_size()])
    is_smaller = room is None or shown is None or shown < room
    return is_smaller and memory_owner(output).op == "call_function"


def views_to(node: fx.Node) -> list[fx.Node]:
    """The views from the owner of the memory to `node`, in order."""
    found: list[fx.Node] = []
    while (viewed := viewed_node(node)) is not None:
        found.append(node)
        node = viewed
    return found[::-1]


def numbers_of(view: fx.Node) -> list[fx.Node]:
    """The symbolic numbers that a view depends on."""
    return [node for node in view.all_input_nodes if node is not viewed_node(view)]


def repeat_views(chain: list[fx.Node], whole: Any, known: dict[fx.Node, Any]) -> Any:
    """The same views of `whole`, with the current nodes of symbolic numbers."""
    for view in chain:
        nodes = {**known, viewed_node(view): whole}
        args, kwargs = fx.map_arg((view.args, view.kwargs), nodes.__getitem__)
        whole = whole.graph.call_function(view.target, args, kwargs)
        whole.meta = dict(view.meta)
    return whole
