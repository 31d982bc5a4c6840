"""Variants of a backward graph: what is left of it when some tangents are undefined or some gradients are not wanted.

The full graph is specialised once per key, compiled lazily, and kept. A training step uses one variant.

    key: tangents (True, False), gradients (True, True)  ->  a graph without tangent 1 and all that only it needed
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx as fx

from aotgrad.ir import BoxedCallable, GraphHalf
from aotgrad.runtime.zeros import CannotMaterialize, remove_undefined
from aotgrad.slots import Gradient, GraphSignature, Primal


@dataclass(frozen=True)
class VariantKey:
    """Which tangents are defined, and which gradients are wanted, in the order of the node's outputs and inputs."""

    tangents: tuple[bool, ...]
    gradients: tuple[bool, ...]

    @property
    def is_full(self) -> bool:
        return all(self.tangents) and all(self.gradients)


@dataclass(frozen=True)
class Variant:
    """A specialised backward graph and how to call it.

    `inputs` are positions in the full graph's inputs. The results are those of the full graph, `None` where a gradient is
    undefined or not wanted.
    """

    half: GraphHalf
    run: BoxedCallable
    inputs: tuple[int, ...]

    def __call__(self, values: Sequence[Any]) -> Sequence[torch.Tensor | None]:
        return self.run([values[position] for position in self.inputs])


@dataclass
class VariantCache:
    """The variants of one backward graph. `gradient_inputs` are the primals whose gradients its node returns."""

    full: GraphHalf
    compile: Callable[[GraphHalf], BoxedCallable]
    gradient_inputs: tuple[int, ...]
    variants: dict[VariantKey, Variant] = field(default_factory=dict)

    def get(self, key: VariantKey) -> Variant:
        variant = self.variants.get(key)
        if variant is None:
            variant = self.variants[key] = self.make(key)
        return variant

    def make(self, key: VariantKey) -> Variant:
        half = self.full if key.is_full else specialize(self.full, key, self.gradient_inputs)
        inputs = tuple(self.full.signature.input_position(slot) for slot in half.signature.inputs)
        return Variant(half, self.compile(half), inputs)


def specialize(full: GraphHalf, key: VariantKey, gradient_inputs: Sequence[int]) -> GraphHalf:
    """`full` without undefined tangents, unwanted gradients, and everything that only they needed."""
    wanted = {Gradient(Primal(p)) for p, is_wanted in zip(gradient_inputs, key.gradients, strict=True) if is_wanted}
    graph, placeholders = copy_graph(full)
    tangents = dict(zip(full.signature.tangents, key.tangents, strict=True))
    undefined = [placeholders[slot] for slot, is_defined in tangents.items() if not is_defined]
    try:
        remove_undefined(graph, undefined, [placeholders[slot] for slot in tangents])
    except CannotMaterialize:
        graph, placeholders = copy_graph(full)
    keep_outputs(graph, full.signature.outputs, wanted)
    remove_dead_code(graph)
    inputs = [slot for slot, node in placeholders.items() if node.users]
    for slot in placeholders.keys() - set(inputs):
        graph.erase_node(placeholders[slot])
    module = fx.GraphModule(full.module, graph)
    return GraphHalf(module, GraphSignature(tuple(inputs), full.signature.outputs))


def copy_graph(half: GraphHalf) -> tuple[fx.Graph, dict[Any, fx.Node]]:
    """A copy of the graph with its `meta`, and its placeholders by slot."""
    graph = fx.Graph()
    results = graph.graph_copy(half.module.graph, {})
    graph.output(results)
    nodes = graph.find_nodes(op="placeholder")
    return graph, dict(zip(half.signature.inputs, nodes, strict=True))


def keep_outputs(graph: fx.Graph, slots: Sequence[Gradient], wanted: set[Gradient]) -> None:
    """Return `None` in place of gradients that are not wanted."""
    (output,) = graph.find_nodes(op="output")
    pairs = zip(slots, output.args[0], strict=True)
    output.args = (tuple(node if slot in wanted else None for slot, node in pairs),)


def remove_dead_code(graph: fx.Graph) -> None:
    """Erase what no output needs. A backward has no effects of its own but for random ops and writes."""
    for node in reversed(graph.nodes):
        is_needed = node.op in ("placeholder", "output") or node.users
        if not is_needed and (node.target is operator.getitem or not node.is_impure()):
            graph.erase_node(node)
