"""Shared checks: graphs against their signatures, and lists of slots."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch.fx as fx

from aotgrad.graph.ends import outputs_of
from aotgrad.slots import SlotSignature

Problems = Iterator[str]
"""A check yields a sentence for each broken rule; the first one is raised."""


def check_graph(module: fx.GraphModule, signature: SlotSignature) -> Problems:
    """Check for a well-formed graph with one slot per placeholder and output, and no repeated input slot."""
    yield from lint(module.graph)
    yield from same_count("placeholders", placeholders_of(module), "input slots", signature.inputs)
    yield from same_count("outputs", outputs_of(module.graph), "output slots", signature.outputs)
    yield from without_repeats("input", signature.inputs)
    yield from check_order_of_collectives(module.graph)
    for node in placeholders_of(module):
        if "val" not in node.meta:
            yield f"placeholder {node.name} has no traced value"


def check_order_of_collectives(graph: fx.Graph) -> Problems:
    """Check that the forward's collectives keep the order of the trace, and so do the backward's: all ranks have that order.

    A collective that a checkpoint recomputes has the place of its first reader.
    """
    for of_backward in (False, True):
        nodes = (node for node in graph.nodes if "collective" in node.meta and is_of_backward(node) is of_backward)
        for earlier, later in itertools.pairwise(nodes):
            if earlier.meta["collective"] > later.meta["collective"]:
                yield f"the collective {earlier.name} runs before {later.name}, and after it in the trace"


def is_of_backward(node: fx.Node) -> bool | None:
    """Whether the backward's trace has made a node; `None` for a node of the forward that the backward recomputes."""
    if node.meta.get("autograd_backward"):
        return True
    return None if node.meta.get("partitioner_tag") == "is_backward" else False


def lint(graph: fx.Graph) -> Problems:
    try:
        graph.lint()
    except Exception as error:
        yield f"the graph is not well formed: {error}"


def same_count(name: str, found: Sequence[Any], of: str, expected: Sequence[Any]) -> Problems:
    if len(found) != len(expected):
        yield f"{len(found)} {name} for {len(expected)} {of}"


def same_slots(name: str, found: Iterable[Any], of: str, expected: Iterable[Any]) -> Problems:
    """Check for equal slots in any order, since the signature defines the order."""
    found, expected = list(found), list(expected)
    missing = [slot for slot in expected if slot not in found]
    surplus = [slot for slot in found if slot not in expected]
    if missing or surplus:
        yield f"{name} and {of} differ: missing {slot_list(missing)}, surplus {slot_list(surplus)}"


def without_repeats(name: str, slots: Sequence[Any]) -> Problems:
    for slot in dict.fromkeys(slots):
        if slots.count(slot) > 1:
            yield f"{name} {slot} appears {slots.count(slot)} times"


def slot_list(slots: Iterable[Any]) -> str:
    return ", ".join(map(str, slots)) or "none"


def placeholders_of(module: fx.GraphModule) -> list[fx.Node]:
    return list(module.graph.find_nodes(op="placeholder"))


def recorded_value(result: Any) -> Any:
    return result.meta.get("val") if isinstance(result, fx.Node) else result
