"""Runs a user's pass and checks the result; an error names the pass.

A pass must keep the signature, the placeholders, the types of the outputs, and which inputs and outputs share memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.errors import PassError
from aotgrad.graph import op_table
from aotgrad.graph.geometry import same_value_type
from aotgrad.graph.memory_owners import memory_owners
from aotgrad.ir import GraphHalf, JointGraph
from aotgrad.passes.base import AnyGraph, Pass
from aotgrad.passes.rewrite import fill_in_values
from aotgrad.slots import SlotSignature


@dataclass(frozen=True)
class CheckedPass:
    """Runs `inner` and checks its result. `place` is where it runs."""

    inner: Pass
    place: str

    @property
    def name(self) -> str:
        return self.inner.name

    def apply(self, graph: AnyGraph) -> AnyGraph:
        """The result of the pass.

        Raises:
            PassError: the pass raised, or its result cannot replace the graph.
        """
        before = Interface.of(graph)
        graph.module.recompile()
        try:
            result = self.inner.apply(graph)
        except Exception as error:
            raise PassError(f"{self.place} pass {self.name!r} raised {type(error).__name__}: {error}") from error
        if type(result) is not type(graph):
            kind = type(result).__name__
            raise PassError(f"{self.place} pass {self.name!r} returned a {kind}, not a {type(graph).__name__}")
        for problem in problems(result, before):
            raise PassError(f"{self.place} pass {self.name!r} broke the graph: {problem}")
        return result


@dataclass(frozen=True)
class Interface:
    """What a pass must keep of a graph. `memory[k]` is the input or first output whose memory output k is in."""

    signature: SlotSignature
    placeholders: tuple[str, ...]
    outputs: tuple[Any, ...]
    memory: tuple[int | None, ...]
    writers: frozenset[str]

    @classmethod
    def of(cls, graph: JointGraph | GraphHalf) -> Interface:
        nodes = list(graph.module.graph.nodes)
        results = nodes[-1].args[0]
        placeholders = tuple(node.name for node in nodes if node.op == "placeholder")
        writers = frozenset(node.name for node in nodes if op_table.writes(node.target))
        values = tuple(node.meta.get("val") if isinstance(node, fx.Node) else node for node in results)
        return cls(graph.signature, placeholders, values, sharing(nodes, results), writers)


def sharing(nodes: list[fx.Node], results: Any) -> tuple[int | None, ...]:
    """For each result, a number that is equal for results in the same memory; inputs come first. `None` for non-tensors."""
    owner = memory_owners(nodes)
    first: dict[fx.Node, int] = {}
    for node in nodes:
        if node.op == "placeholder":
            first[node] = len(first)
    count = len(first)
    return tuple(
        first.setdefault(owner[node], count + k) if isinstance(node, fx.Node) else None for k, node in enumerate(results)
    )


def problems(graph: JointGraph | GraphHalf, before: Interface) -> Iterator[str]:
    """A sentence for each change that a pass must not make."""
    try:
        graph.module.graph.lint()
        fill_in_values(graph.module)
    except Exception as error:
        yield f"it is not well formed: {error}"
        return
    now = Interface.of(graph)
    if now.signature != before.signature:
        yield "its signature changed"
    elif now.placeholders != before.placeholders:
        yield f"its placeholders are {', '.join(now.placeholders)}; they were {', '.join(before.placeholders)}"
    elif len(now.outputs) != len(before.outputs):
        yield f"it returns {len(now.outputs)} values; it returned {len(before.outputs)}"
    else:
        yield from (f"node {name} writes to its arguments" for name in sorted(now.writers - before.writers))
        yield from changed_outputs(now, before)


def changed_outputs(now: Interface, before: Interface) -> Iterator[str]:
    for slot, value, expected in zip(now.signature.outputs, now.outputs, before.outputs, strict=True):
        if not same_value_type(value, expected):
            yield f"{slot} is {describe_type(value)}; it was {describe_type(expected)}"
    for slot, number, expected in zip(now.signature.outputs, now.memory, before.memory, strict=True):
        if number != expected:
            yield f"{slot} shares memory with other inputs or outputs than before"


def describe_type(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return "None" if value is None else f"a {type(value).__name__}"
    sizes, strides = ", ".join(map(str, value.size())), ", ".join(map(str, torch_compat.strides(value)))
    return f"{str(value.dtype).removeprefix('torch.')}[{sizes}] with strides [{strides}]"
