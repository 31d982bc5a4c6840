"""The backward of a segment as a part of the graph of compiled autograd.

Compiled autograd records a whole backward, once for each structure of autograd nodes, and compiles it as one graph. The
graph of a segment is copied into it as it was traced, in the variant for the tangents and gradients of that backward.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_nodes
from aotgrad.graph.floats import float_of_halves, replace_floats
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.graph.symbols import bound_symbol
from aotgrad.ir import GraphHalf
from aotgrad.runtime.backward import Backward, SizeAndStride, with_traced_layout, zeros
from aotgrad.runtime.variants import VariantKey
from aotgrad.slots import SavedSymInt, of_kind


@dataclass(frozen=True)
class InlinedBackward:
    """The variants of a backward with the gradients `wanted`. Implements `torch_compat.InlinedNode`.

    A gradient that the recorded graph takes may be undefined when the graph runs. Then it takes zeros in its place, and what
    depends on undefined gradients only is `None`.
    """

    backward: Backward
    wanted: tuple[bool, ...]

    def graph(self, defined: Sequence[bool]) -> fx.GraphModule:
        """The graph of a variant, which takes all inputs of the full graph, then the layouts of the tangents.

        Raises:
            RuntimeError: eager's, if the backward needs a value which the call itself overwrote.
        """
        key = VariantKey(tuple(defined), self.wanted)
        self.backward.check_overwritten(key)
        full, half = self.backward.variants.full, self.backward.variants.graph(key)[0]
        graph = fx.Graph()
        placed = {slot: [*map(graph.placeholder, names_of_inputs(node))] for slot, node in full.placeholders.items()}
        layouts = graph.placeholder("layouts")
        inputs = {slot: input_of(graph, full.placeholders[slot], nodes) for slot, nodes in placed.items()}
        tangents = {slot: self.filled(graph, inputs[slot], layouts, k) for k, slot in enumerate(full.signature.incoming)}
        values = {node: {**inputs, **tangents}[slot] for slot, node in half.placeholders.items()}
        results: Any = copy_nodes(graph, half.module.graph, values)
        if self.saves_floats:
            results = results_without_floats(graph, results)
        let_dynamo_draw(graph)
        sources = tangents_behind(graph, {tangents[slot]: inputs[slot] for slot in tangents})
        graph.output(tuple(node and only_defined(graph, node, sources.get(node, ())) for node in results))
        return LazyGraphModule(half.module, graph)

    def filled(self, graph: fx.Graph, tangent: fx.Node, layouts: fx.Node, position: int) -> fx.Node:
        formats = self.backward.variants.facts.formats
        node = graph.call_function(or_zeros, (tangent, layouts, position, *formats[position]))
        node.meta = dict(tangent.meta)
        return node

    @torch_compat.hide_from_dynamo
    def inputs(self, saved: Sequence[Any], sizes: Sequence[Any], unused: Sequence[Any], tangents: Sequence[Any]) -> Any:
        """The inputs of the graph, tangents as they were laid out in the trace."""
        layouts = self.layouts(sizes)
        return [*sizes, *saved, *map(with_traced_layout, tangents, layouts), layouts]

    @torch_compat.hide_from_dynamo
    def results(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        return self.backward.node_results(gradients)

    def layouts(self, sizes: Sequence[Any]) -> Sequence[SizeAndStride]:
        """The layouts of the tangents in a call with some symbolic sizes."""
        values = {**torch_compat.text_namespace(), **dict(zip(self.size_names, sizes, strict=True))}
        return eval(torch_compat.compiled_text(self.layout_text), values) if self.size_names else self.backward.layouts

    @functools.cached_property
    def size_names(self) -> tuple[str, ...]:
        return names_of_sizes(self.backward.variants.full)

    @functools.cached_property
    def layout_text(self) -> str:
        return nested_text(self.backward.layouts)

    @functools.cached_property
    def saves_floats(self) -> bool:
        return any(map(is_float, self.backward.variants.full.placeholders.values()))

    @functools.cached_property
    def takes_its_floats(self) -> bool:
        """Whether each op that takes a float can take a tensor in its place."""
        try:
            return not self.saves_floats or bool(self.graph([True] * len(self.backward.layouts)))
        except CaptureError:
            return False

    @functools.cached_property
    def knows_layouts(self) -> bool:
        """Whether the saved sizes determine the layouts. They do, unless a size depends on the values of a tensor."""
        numbers = (number for layout in self.backward.layouts for part in layout for number in part)
        symbolic = filter(torch_compat.has_symbols, numbers)
        return {name for number in symbolic for name in torch_compat.symbolic_text(number)[1]} <= {*self.size_names}


def is_float(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymFloat)


def names_of_inputs(node: fx.Node) -> tuple[str, ...]:
    """The placeholders in the graph of compiled autograd for one of a backward."""
    return (f"{node.name}_high", f"{node.name}_low") if is_float(node) else (node.name,)


def input_of(graph: fx.Graph, node: fx.Node, placed: Sequence[fx.Node]) -> fx.Node:
    """The value of a placeholder of a backward, from the placeholders for it."""
    if not is_float(node):
        placed[0].meta = dict(node.meta)
        return placed[0]
    tensor = graph.call_function(float_of_halves, tuple(placed))
    with torch_compat.fake_mode_of(node.graph):
        tensor.meta["val"] = torch.empty((), dtype=torch.float64)
    number = graph.call_function(torch_compat.read_number, (tensor,))
    number.meta = torch_compat.meta_of_read(tensor.meta["val"])
    return number


def results_without_floats(graph: fx.Graph, results: Any) -> Any:
    """The results of a graph after floats in it became tensors.

    Raises:
        CaptureError: an op takes a float, but no tensor.
    """
    output = graph.output(results)
    replace_floats(graph)
    (found,) = output.args
    graph.erase_node(output)
    return found


def let_dynamo_draw(graph: fx.Graph) -> None:
    """Replace the op that draws from a given state, at which Dynamo breaks the graph, by torch's own."""
    for node in graph.find_nodes(op="call_function", target=torch_compat.draw_again):
        if torch_compat.can_draw_for_dynamo(op_table.drawing_device(node)):
            node.target = torch_compat.draw_again_for_dynamo


def or_zeros(
    tangent: torch.Tensor | None, layouts: Sequence[SizeAndStride], position: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """In the graph: a tangent, or zeros of its layout."""
    return zeros(layouts[position], dtype, device) if tangent is None else tangent


def if_any_defined(gradient: torch.Tensor, tangents: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """In the graph: a gradient that depends on these tangents."""
    return None if all(tangent is None for tangent in tangents) else gradient


def only_defined(graph: fx.Graph, gradient: fx.Node, tangents: Collection[fx.Node]) -> fx.Node:
    return graph.call_function(if_any_defined, (gradient, tuple(tangents))) if tangents else gradient


def tangents_behind(graph: fx.Graph, tangents: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, dict[fx.Node, None]]:
    """For each node that depends on some of the keys of `tangents`, their values, in order."""
    found = {node: {source: None} for node, source in tangents.items()}
    for node in graph.nodes:
        sources = dict.fromkeys(source for arg in node.all_input_nodes for source in found.get(arg, ()))
        if sources and node not in found:
            found[node] = sources
    return found


def names_of_sizes(half: GraphHalf) -> tuple[str, ...]:
    """The symbols of the sizes that a backward saves, in order, and names for its floats: its first inputs."""
    count = len(of_kind(half.signature.inputs, SavedSymInt))
    nodes = half.module.graph.find_nodes(op="placeholder")[:count]
    each = (names_of_inputs(node) if is_float(node) else (str(bound_symbol(node.meta["val"])),) for node in nodes)
    return tuple(itertools.chain.from_iterable(each))


def nested_text(value: Any) -> str:
    """A nested tuple of numbers, some of them symbolic, as Python source.

    >>> nested_text(((2, 3), (3, 1)))
    '((2, 3,), (3, 1,),)'
    """
    if isinstance(value, tuple):
        return f"({''.join(f'{nested_text(item)}, ' for item in value).rstrip()})"
    return torch_compat.symbolic_text(value)[0] if torch_compat.has_symbols(value) else repr(value)
