"""What the inputs and outputs of a graph are that the author of a backend compiles.

    compile(graph, inputs, role)        inputs: GraphInput("x", ..., Primal(0), is_static=True), ...
    graph_outputs(graph)                GraphOutput("mul", Saved("mul")), GraphOutput("sin", read_by=(2,))

Where some ops run in eager, a graph is cut into parts, numbered in the order in which they run, those in eager, too. A value
that one part passes to another one has no slot, but the numbers of these parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch.fx as fx

from aotgrad.backends.pieces import Cut, Piece
from aotgrad.graph.ends import output_node, outputs_of
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.graph.source_lines import module_path, source_line
from aotgrad.ir import GraphHalf
from aotgrad.slots import InputSlot, OutputSlot

MADE_BY = "made_by"
"""The key in `meta` of a placeholder of a part: the number of the part that computes the value."""


@dataclass(frozen=True)
class GraphInput:
    """What a placeholder of a graph is.

    Attributes:
        name: of the placeholder.
        value: a fake tensor (shape, strides, dtype, device), or a symbolic number.
        slot: its meaning, `Primal(0)` or `Saved("sin")`; `None` for what another part of the graph computes.
        made_by: the number of that part.
        is_static: its memory is the same in every call: a parameter, a buffer.
        may_be_overwritten: nobody reads it after the graph, which may write over its memory.
        source: the user's line that made it, if known.
        path: its name in its module, `"layers.0.weight"`, if it is a parameter or buffer; of a value that a graph computes,
            the path of the module around that line, `"layers.0"`; `None` if unknown.
    """

    name: str
    value: Any
    slot: InputSlot | None = None
    is_static: bool = False
    may_be_overwritten: bool = False
    source: str | None = None
    path: str | None = None
    made_by: int | None = None

    def __str__(self) -> str:
        marks = [word for word, holds in (("static", self.is_static), ("overwritable", self.may_be_overwritten)) if holds]
        origin = [] if self.made_by is None else [f"from part {self.made_by}"]
        return ", ".join([self.name if self.slot is None else str(self.slot), *origin, *marks])


@dataclass(frozen=True)
class GraphOutput:
    """What a graph returns at one place: the name of its node (`None` for a constant), its meaning, its line and module.

    `read_by`: the numbers of the parts that it is passed to. `slot` is `None` if only these read it.
    """

    name: str | None
    slot: OutputSlot | None = None
    source: str | None = None
    path: str | None = None
    read_by: tuple[int, ...] = ()

    @classmethod
    def of(cls, node: Any, slot: OutputSlot | None = None, read_by: tuple[int, ...] = ()) -> GraphOutput:
        if not isinstance(node, fx.Node):
            return cls(None, slot)
        return cls(node.name, slot, source_line(node.meta.get("stack_trace")), path_of(node), read_by)

    def __str__(self) -> str:
        meaning, parts = str(self.name if self.slot is None else self.slot), ", ".join(map(str, self.read_by))
        return f"{meaning}, for part{'s' if len(self.read_by) > 1 else ''} {parts}" if self.read_by else meaning


@dataclass(frozen=True)
class Kinds:
    """What the inputs of a half are, by name."""

    slots: Mapping[str, InputSlot]
    static: frozenset[str]
    overwritable: frozenset[str]

    @classmethod
    def of(cls, half: GraphHalf, static: frozenset[str]) -> Kinds:
        slots = dict(names_of_slots(half))
        return cls(slots, static, frozenset(name for name, slot in slots.items() if slot in half.overwritable))

    def input_of(self, node: fx.Node) -> GraphInput:
        name, source = node.name, source_line(node.meta.get("stack_trace"))
        return GraphInput(
            *(name, node.meta["val"], self.slots.get(name), name in self.static, name in self.overwritable),
            source=source,
            path=path_of(node),
            made_by=node.meta.get(MADE_BY),
        )


def path_of(node: fx.Node) -> str | None:
    """The name of a parameter or buffer, or the path of the module that a node is in; `None` if unknown."""
    return node.meta["path"] if "path" in node.meta else module_path(node.meta)


def names_of_slots(half: GraphHalf) -> Iterable[tuple[str, InputSlot]]:
    """The names of the placeholders, with their slots."""
    return ((node.name, slot) for slot, node in half.placeholders.items())


def mark_outputs(half: GraphHalf) -> None:
    """Note the meaning of each output, for `graph_outputs`."""
    nodes = zip(outputs_of(half.module.graph), half.signature.outputs, strict=True)
    output_node(half.module.graph).meta["outputs"] = tuple(GraphOutput.of(node, slot) for node, slot in nodes)


def graph_outputs(graph: fx.GraphModule) -> tuple[GraphOutput, ...]:
    """What each output is of a graph that `Backend.compile` got."""
    known = output_node(graph.graph).meta.get("outputs")
    return known or tuple(GraphOutput.of(node) for node in outputs_of(graph.graph))


def graph_part(graph: fx.GraphModule) -> int | None:
    """The number of the part that a graph is which `Backend.compile` got; `None` for a whole graph.

    Equal parts are compiled once: the number, and what inputs and outputs are, is that of the first one.
    """
    return output_node(graph.graph).meta.get("part")


@dataclass(frozen=True)
class GraphParts:
    """A cut graph, with what the inputs of each of its parts are."""

    cut: Cut
    kinds: Mapping[fx.Graph, Kinds]

    @classmethod
    def of(cls, cut: Cut, half: GraphHalf, kinds: Kinds) -> GraphParts:
        """Notes in the graphs of the parts what their inputs and outputs are."""
        makers = {name: k for k, piece in enumerate(cut.pieces) for name in piece.makes}
        readers: dict[str, tuple[int, ...]] = {}
        for k, piece in enumerate(cut.pieces):
            readers |= {name: (*readers.get(name, ()), k) for name in piece.reads}
        nodes = zip(cut.results, half.signature.outputs, strict=True)
        slots = {node.name: slot for node, slot in reversed(list(nodes)) if isinstance(node, fx.Node)}
        for k, piece in enumerate(cut.pieces):
            for node in piece.graph.find_nodes(op="placeholder"):
                node.meta[MADE_BY] = makers.get(node.name)
            made = zip(outputs_of(piece.graph), piece.makes, strict=True)
            outputs = tuple(GraphOutput.of(node, slots.get(name or ""), readers.get(name or "", ())) for node, name in made)
            output_node(piece.graph).meta.update(outputs=outputs, part=k)
        own = {piece.graph: kinds_of_part(piece, kinds, readers) for piece in cut.pieces}
        pieces = tuple(distinguished(piece, own[piece.graph]) for piece in cut.pieces)
        return cls(replace(cut, pieces=pieces), own)


def kinds_of_part(piece: Piece, kinds: Kinds, readers: Mapping[str, tuple[int, ...]]) -> Kinds:
    """What the inputs of a part are. It may write over those that no other part reads, nor a view that it returns.

    Args:
        kinds: those of the inputs of the whole graph.
        readers: the parts that read each value, by name.
    """
    shown = {memory_owner(node).name for node in outputs_of(piece.graph)}
    own = {name for name in piece.reads if len(readers[name]) == 1 and name not in shown}
    return replace(kinds, overwritable=kinds.overwritable & own)


def distinguished(piece: Piece, kinds: Kinds) -> Piece:
    """A piece that equals only those whose inputs a compiler may treat alike."""
    marks = tuple((name in kinds.static, name in kinds.overwritable) for name in piece.reads)
    return replace(piece, key=(piece.key, marks))
