"""Graphs <-> plain data: names, operators, arguments, and the shape, layout and storage of every traced value.

In: an `fx.GraphModule` of operators. Out: one that is equal for every stage after the partition. `StoredHalf` parses its
graph on first use; a backend that stored its code for a graph never needs it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.cache.entry import GraphText
from aotgrad.cache.serialize import DamagedEntry, Decoder, Encoder, NotSerializable
from aotgrad.errors import ShippingError
from aotgrad.graph.collectives import RunsBetween
from aotgrad.graph.functionalized_call import FunctionalizedCall
from aotgrad.graph.kept_calls import KEPT_FUNCTION, KeptBackward
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.graph.op_table import EFFECTFUL_NAMESPACES
from aotgrad.ir import GraphHalf
from aotgrad.slots import Saved
from aotgrad.torch_compat import FakeTensorMode

STORED_META = ("autograd_backward", "collective", "forward_op", "original_aten", "runs_between", "segment")
"""The metadata that the runtime and Inductor's names read, besides the value, stack trace and autograd node."""

STORED_TYPES = (bool, int, str, torch._ops.OpOverload, RunsBetween)
"""The types of metadata that is stored."""

Attributes = Mapping[str, Any]
"""The attributes of a graph by name: tensors that the function closed over or made of numbers."""

NO_ATTRIBUTES: Attributes = MappingProxyType({})

KeptFunctions = Mapping[str, Callable]
"""The functions whose calls a backend keeps whole, by name."""

NOTHING_KEPT: KeptFunctions = MappingProxyType({})

Origins = Sequence["str | None"]
"""Stack traces of the traced nodes. Graphs refer to them by position, so messages name a moved line where it is now."""


def encode_half(
    half: GraphHalf,
    origins: Origins = (),
    held: Attributes = NO_ATTRIBUTES,
    custom_ops: bool = False,
    unbacked: bool = False,
) -> GraphText:
    """The text of a half.

    Args:
        half: the half.
        origins: stack traces that the reading process has.
        held: attributes that the reading process has under the same names; the text omits them.
        custom_ops: whether custom operators are allowed.
        unbacked: whether numbers that depend on data are allowed.

    Raises:
        NotSerializable: a node has no plain form.
    """
    if isinstance(half, StoredHalf):
        return half.stored
    encoder = GraphEncoder(origins, custom_ops, unbacked)
    data = encoder.encode(half.module, held)
    return GraphText(text_of(data), digest_of(text_of(computation_of(data))), half.signature, encoder.is_symbolic)


def computation_of(form: Mapping[str, Any]) -> dict[str, Any]:
    """The form of a graph without the metadata of its nodes."""
    constants = {
        name: ["graph", computation_of(value[1])] if value[0] == "graph" else value
        for name, value in form["constants"].items()
    }
    return {"nodes": form["nodes"], "constants": constants, "storages": form["storages"]}


@dataclass
class GraphEncoder:
    """Encodes a graph and the graphs inside it. Arguments as for `encode_half`."""

    origins: Origins
    custom_ops: bool
    unbacked: bool
    is_symbolic: bool = False

    def encode(self, module: fx.GraphModule, held: Attributes = NO_ATTRIBUTES) -> dict[str, Any]:
        nodes = list(module.graph.nodes)
        encoder = Encoder({node: k for k, node in enumerate(nodes)}, self.custom_ops, self.unbacked)
        rows = [encode_node(encoder, node) for node in nodes]
        attributes = {node.target: attribute_of(module, node) for node in nodes if node.op == "get_attr"}
        attributes |= {graph_name(node): node.target.graph for node in nodes if isinstance(node.target, KeptBackward)}
        kept = {name: value for name, value in attributes.items() if value is not held.get(name)}
        constants = {name: self.constant(encoder, name, value) for name, value in kept.items()}
        self.is_symbolic |= encoder.is_symbolic
        metas = list(encode_metas(nodes, self.origins, self.custom_ops))
        return {"nodes": rows, "constants": constants, "storages": encoder.storages, "metas": metas}

    def constant(self, encoder: Encoder, name: str, value: Any) -> list[Any]:
        if isinstance(value, fx.GraphModule):
            return ["graph", self.encode(value)]
        if not isinstance(value, torch.Tensor):
            raise NotSerializable(f"the attribute {name} of a graph, which is not a tensor")
        return encoder.encode(value)


def encode_node(encoder: Encoder, node: fx.Node) -> list[Any]:
    if node.op in ("call_module", "call_method"):
        raise NotSerializable(f"a node {node.op}")
    has_value = "val" in node.meta and not isinstance(node.meta["val"], torch.ScriptObject)  # one of the profiler's
    value = [encoder.encode(node.meta["val"])] if has_value else []
    return [node.op, node.name, encode_target(encoder, node), *map(encoder.encode, (node.args, node.kwargs)), *value]


def encode_target(encoder: Encoder, node: fx.Node) -> Any:
    """The target of a node. For one that computes the gradients of a kept call, the graph is a constant."""
    if isinstance(target := node.target, KeptBackward):
        parts = map(encoder.encode, (target.inputs, target.outputs, target.args, target.kwargs))
        return ["kept backward", kept_name(target.function), graph_name(node), *parts]
    if isinstance(target, FunctionalizedCall):
        return ["functionalized", kept_name(target.function), target.reads_changed, *target.changed]
    return ["kept", kept_name(target)] if node.meta.get(KEPT_FUNCTION) is target else encoder.encode(target)


def graph_name(node: fx.Node) -> str:
    """The name of the graph of a `KeptBackward`, which no attribute has."""
    return f"graph of {node.name}"


def kept_name(function: Any) -> str:
    """Raises NotSerializable: it is no function of torch."""
    if (name := torch_compat.function_name(function)) is None:
        shown = getattr(function, "__qualname__", function)
        raise NotSerializable(f"a call of {shown}, which the backend keeps (`keep`), and which is no function of torch")
    return name


def functions_by_name(keep: Collection[Any]) -> KeptFunctions:
    """The functions that a backend keeps, as graphs name them."""
    return {name: function for function in keep if (name := torch_compat.function_name(function)) is not None}


def encode_metas(nodes: Sequence[fx.Node], origins: Origins, custom_ops: bool) -> Iterator[dict[str, Any]]:
    """The metadata of each node. Autograd nodes are renumbered, since their numbers differ between processes."""
    encoder = Encoder(custom_ops=custom_ops)
    places = {trace: k for k, trace in reversed(list(enumerate(origins))) if trace}
    numbers: dict[int, int] = {}
    for node in nodes:
        kept = {name: encoder.encode(node.meta[name]) for name in STORED_META if is_stored_meta(node, name)}
        if (number := node.meta.get("seq_nr")) is not None:
            kept["seq_nr"] = numbers.setdefault(number, len(numbers))
        if (trace := node.meta.get("stack_trace")) is not None:
            kept["origin"] = places.get(trace, trace)
        yield kept


def is_stored_meta(node: fx.Node, name: str) -> bool:
    return isinstance(node.meta.get(name), STORED_TYPES)


def attribute_of(module: fx.GraphModule, node: fx.Node) -> Any:
    return functools.reduce(getattr, str(node.target).split("."), module)


def decode_graph(
    text: str,
    mode: FakeTensorMode,
    origins: Origins = (),
    held: Attributes = NO_ATTRIBUTES,
    kept: KeptFunctions = NOTHING_KEPT,
) -> fx.GraphModule:
    """The graph of a text; `held` are the omitted attributes, `kept` the functions that it may call.

    Raises:
        DamagedEntry: the text describes no graph.
        ShippingError: it calls another function.
    """
    with torch_compat.normal_mode():
        return decode_form(json.loads(text), mode, origins, held, kept)


def decode_form(
    data: Mapping[str, Any], mode: FakeTensorMode, origins: Origins, held: Attributes, kept: KeptFunctions
) -> fx.GraphModule:
    """The graph that `GraphEncoder` encoded. Raises DamagedEntry, ShippingError."""
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    decoder = Decoder(mode, data["storages"], nodes)

    def constant(form: list[Any]) -> Any:
        return decode_form(form[1], mode, origins, NO_ATTRIBUTES, kept) if form[0] == "graph" else decoder.decode(form)

    constants = {name: constant(form) for name, form in data["constants"].items()}
    for (op, name, target, args, kwargs, *value), meta in zip(data["nodes"], data["metas"], strict=True):
        called = decode_target(decoder, target, constants, kept)
        given, named = map(decoder.decode, (args, kwargs))
        reject_unspeakable(op, called, named)
        node = graph.create_node(op, called, given, named, name=name)
        if node.name != name:
            raise DamagedEntry(f"two nodes with the name {name}")
        node.meta.update(("val", decoder.decode(each)) for each in value)
        node.meta.update(decode_meta(decoder, meta, origins))
        if called in kept.values():
            node.meta[KEPT_FUNCTION] = called
        nodes.append(node)
    return LazyGraphModule({**held, **constants}, graph)


def decode_target(decoder: Decoder, form: Any, constants: Attributes, kept: KeptFunctions) -> Any:
    """Raises DamagedEntry, ShippingError."""
    match form:
        case ["kept", name]:
            return kept_function(name, kept)
        case ["functionalized", name, reads_changed, *changed]:
            return FunctionalizedCall(kept_function(name, kept), tuple(changed), reads_changed)
        case ["kept backward", name, graph, *parts]:
            inputs, outputs, args, kwargs = map(decoder.decode, parts)
            return KeptBackward(kept_function(name, kept), constants[graph], inputs, outputs, args, kwargs)
    return decoder.decode(form)


def kept_function(name: str, kept: KeptFunctions) -> Callable:
    """The function of a name, which the backend keeps: no other function may be called. Raises ShippingError."""
    if name not in kept:
        raise ShippingError(
            f"a plan has a call of {name} as one node, and the `keep` of this backend lacks that function: pass the backend "
            "that the plan was compiled for"
        )
    return kept[name]


def reject_unspeakable(op: str, target: Any, kwargs: Mapping[Any, Any]) -> None:
    """Raise DamagedEntry for a node whose name in Python source would be more than a name: graphs become source."""
    is_called = op == "call_function" and not isinstance(target, str)
    is_named = op in ("placeholder", "get_attr", "output") and isinstance(target, str)
    names = [*(target.split(".") if is_named else ()), *kwargs]
    if not (is_called or is_named) or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise DamagedEntry(f"a node {op} of {target!r}")


def decode_meta(decoder: Decoder, data: Mapping[str, Any], origins: Origins) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if name != "origin":
            yield name, decoder.decode(value)
        elif (trace := value if isinstance(value, str) else origins[value]) is not None:
            yield "stack_trace", trace


def text_of(data: Any) -> str:
    """Plain data as one string; equal data gives equal strings."""
    return json.dumps(data, separators=(",", ":"))


def digest_of(*parts: str) -> str:
    """64 hexadecimal digits, which differ if any part differs."""
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part.encode()).digest())
    return total.hexdigest()


class StoredHalf(GraphHalf):
    """A half that parses its graph on first use."""

    stored: GraphText
    mode: FakeTensorMode
    origins: Origins
    held: Attributes
    kept: KeptFunctions

    def __init__(
        self,
        stored: GraphText,
        mode: FakeTensorMode,
        origins: Origins,
        held: Attributes = NO_ATTRIBUTES,
        kept: KeptFunctions = NOTHING_KEPT,
        overwritable: frozenset[Saved] = frozenset(),
    ) -> None:
        values = {
            "stored": stored,
            "signature": stored.signature,
            "mode": mode,
            "origins": origins,
            "held": held,
            "kept": kept,
            "overwritable": overwritable,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @functools.cached_property
    def module(self) -> fx.GraphModule:  # pyright: ignore[reportIncompatibleVariableOverride]
        return decode_graph(self.stored.text, self.mode, self.origins, self.held, self.kept)

    @property
    def input_names(self) -> tuple[str, ...]:  # those of the graphs inside come later
        return tuple(re.findall(r'\["placeholder","(\w+)"', self.stored.text)[: len(self.signature.inputs)])

    def calls_any(self, names: Collection[str]) -> bool:
        return any(name.replace(".", "::") in self.stored.text for name in names)  # without parsing the graph

    def communicates(self) -> bool:
        return any(f"{name}::" in self.stored.text for name in EFFECTFUL_NAMESPACES)

    def guard_count(self) -> int:
        return torch_compat.guards_of_mode(self.mode)

    def attributes(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        if all(name in self.held for name in names):
            return {name: self.held[name] for name in names}
        constants, decoder = json.loads(self.stored.text)["constants"], Decoder(self.mode)
        with torch_compat.normal_mode():
            made = {name: decoder.decode(constants[name]) for name in names if name not in self.held}
        return {name: made[name] if name in made else self.held[name] for name in names}

    def copy(self) -> GraphHalf:  # pyright: ignore[reportIncompatibleMethodOverride]: a copy is no longer what is stored
        return GraphHalf(self.module, self.signature).copy()

    def for_backend(self, overwritable: frozenset[Saved]) -> StoredHalf:
        """The same, which parses a graph of its own."""
        return StoredHalf(self.stored, self.mode, self.origins, self.held, self.kept, overwritable)
