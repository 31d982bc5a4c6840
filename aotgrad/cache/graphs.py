"""Graphs <-> plain data: names, operators, arguments, and of what was traced, shapes and where in memory they lie.

In: an `fx.GraphModule` of operators. Out: one that is the same to every stage after the partition. `StoredHalf` reads it
when it is needed: a backend that has kept what it made of a graph does not ask.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.cache.entry import GraphText
from aotgrad.cache.serialize import Damaged, NotPlain, Reader, Writer
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.ir import GraphHalf
from aotgrad.torch_compat import FakeTensorMode

KEPT_META = ("autograd_backward", "forward_op", "original_aten")
"""What the runtime and Inductor's names ask of a node, besides its value, its stack trace and its autograd node."""

Attributes = Mapping[str, Any]
"""What a graph refers to by name: tensors that a function closed over, or made of numbers."""

NOTHING: Attributes = MappingProxyType({})

Origins = Sequence["str | None"]
"""Stack traces of what was traced, by position: graphs refer to them, so that a line that has moved is the one printed."""


def write_half(half: GraphHalf, origins: Origins = (), held: Attributes = NOTHING, of_users: bool = False) -> GraphText:
    """The text of a half.

    Args:
        half: what is written.
        origins: stack traces that the reader has.
        held: attributes that the reader has under the same name, and which are left out.
        of_users: whether there may be operators of the user's own.

    Raises:
        NotPlain: a node of it has none.
    """
    if isinstance(half, StoredHalf):
        return half.stored
    form = GraphForm(origins, of_users)
    data = form.of(half.module, held)
    return GraphText(text_of(data), digest(text_of(what_computes(data))), half.signature, form.is_symbolic)


def what_computes(form: Mapping[str, Any]) -> dict[str, Any]:
    """The form of a graph without what is only said of its nodes."""
    constants = {
        name: ["graph", what_computes(value[1])] if value[0] == "graph" else value
        for name, value in form["constants"].items()
    }
    return {"nodes": form["nodes"], "constants": constants, "storages": form["storages"]}


@dataclass
class GraphForm:
    """The plain form of a graph and of those inside of it. Arguments as for `write_half`."""

    origins: Origins
    of_users: bool
    is_symbolic: bool = False

    def of(self, module: fx.GraphModule, held: Attributes = NOTHING) -> dict[str, Any]:
        nodes = list(module.graph.nodes)
        writer = Writer({node: k for k, node in enumerate(nodes)}, self.of_users)
        rows = [write_node(writer, node) for node in nodes]
        attributes = {node.target: attribute_of(module, node) for node in nodes if node.op == "get_attr"}
        kept = {name: value for name, value in attributes.items() if value is not held.get(name)}
        constants = {name: self.constant(writer, name, value) for name, value in kept.items()}
        self.is_symbolic |= writer.is_symbolic
        metas = list(write_metas(nodes, self.origins, self.of_users))
        return {"nodes": rows, "constants": constants, "storages": writer.storages, "metas": metas}

    def constant(self, writer: Writer, name: str, value: Any) -> list[Any]:
        if isinstance(value, fx.GraphModule):
            return ["graph", self.of(value)]
        if not isinstance(value, torch.Tensor):
            raise NotPlain(f"the attribute {name} of a graph, which is no tensor")
        return writer.write(value)


def write_node(writer: Writer, node: fx.Node) -> list[Any]:
    if node.op in ("call_module", "call_method"):
        raise NotPlain(f"a node {node.op}")
    value = [writer.write(node.meta["val"])] if "val" in node.meta else []
    return [node.op, node.name, *map(writer.write, (node.target, node.args, node.kwargs)), *value]


def write_metas(nodes: Sequence[fx.Node], origins: Origins, of_users: bool) -> Iterator[dict[str, Any]]:
    """The rest of what is known of each node. Numbers of autograd nodes are those of a process: they are counted anew."""
    writer = Writer(of_users=of_users)
    places = {trace: k for k, trace in reversed(list(enumerate(origins))) if trace}
    numbers: dict[int, int] = {}
    for node in nodes:
        kept = {name: writer.write(node.meta[name]) for name in KEPT_META if has_plain(node, name)}
        if (number := node.meta.get("seq_nr")) is not None:
            kept["seq_nr"] = numbers.setdefault(number, len(numbers))
        if (trace := node.meta.get("stack_trace")) is not None:
            kept["origin"] = places.get(trace, trace)
        yield kept


def has_plain(node: fx.Node, name: str) -> bool:
    return isinstance(node.meta.get(name), (bool, str, torch._ops.OpOverload))


def attribute_of(module: fx.GraphModule, node: fx.Node) -> Any:
    return functools.reduce(getattr, str(node.target).split("."), module)


def read_graph(text: str, mode: FakeTensorMode, origins: Origins = (), held: Attributes = NOTHING) -> fx.GraphModule:
    """The graph of a text; `held` are the attributes that were left out.

    Raises:
        Damaged: it is the text of none.
    """
    with torch_compat.normal_mode():
        return read_form(json.loads(text), mode, origins, held)


def read_form(data: Mapping[str, Any], mode: FakeTensorMode, origins: Origins, held: Attributes) -> fx.GraphModule:
    """What `GraphForm` has written. Raises Damaged."""
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    reader = Reader(mode, data["storages"], nodes)
    for (op, name, target, args, kwargs, *value), meta in zip(data["nodes"], data["metas"], strict=True):
        node = graph.create_node(op, *map(reader.read, (target, args, kwargs)), name=name)
        if node.name != name:
            raise Damaged(f"two nodes with the name {name}")
        node.meta.update(("val", reader.read(each)) for each in value)
        node.meta.update(read_meta(reader, meta, origins))
        nodes.append(node)

    def constant(form: list[Any]) -> Any:
        return read_form(form[1], mode, origins, NOTHING) if form[0] == "graph" else reader.read(form)

    constants = {name: constant(form) for name, form in data["constants"].items()}
    return LazyGraphModule({**held, **constants}, graph)


def read_meta(reader: Reader, data: Mapping[str, Any], origins: Origins) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if name != "origin":
            yield name, reader.read(value)
        elif (trace := value if isinstance(value, str) else origins[value]) is not None:
            yield "stack_trace", trace


def text_of(data: Any) -> str:
    """Plain data as one string, the same for the same data."""
    return json.dumps(data, separators=(",", ":"))


def digest(*parts: str) -> str:
    """64 hexadecimal digits that differ if any part differs."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part.encode()).digest())
    return total.hexdigest()


class StoredHalf(GraphHalf):
    """A half whose graph is read from its text when somebody asks for it."""

    stored: GraphText
    mode: FakeTensorMode
    origins: Origins
    held: Attributes

    def __init__(self, stored: GraphText, mode: FakeTensorMode, origins: Origins, held: Attributes = NOTHING) -> None:
        values = {"stored": stored, "signature": stored.signature, "mode": mode, "origins": origins, "held": held}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @functools.cached_property
    def module(self) -> fx.GraphModule:  # pyright: ignore[reportIncompatibleVariableOverride]
        return read_graph(self.stored.text, self.mode, self.origins, self.held)
