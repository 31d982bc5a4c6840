"""Variants of a backward graph: what is left of it when some tangents are undefined or some gradients are not wanted.

The full graph is specialised once per key, compiled lazily, and kept. A training step uses one variant. Threads that need a
variant at once make it once.

    key: tangents (True, False), gradients (True, True)  ->  a graph without tangent 1 and all that only it needed
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.gradient_masks import narrow_mask
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.graph.symbols import bound_symbol, symbols_of
from aotgrad.ir import BoxedCallable, GraphHalf
from aotgrad.plan_cache.lock import COMPILING
from aotgrad.runtime.zeros import CannotMaterialize, remove_undefined, undefined_outputs
from aotgrad.slots import Gradient, GraphSignature, Memory

T = TypeVar("T")


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
    """A backward graph for one key and how to call it.

    `inputs` are positions in the full graph's inputs, `None` if it takes all. The results are those of the full graph;
    `undefined` are those that are dropped after the call, in a variant that could not be specialised and runs on real
    zeros; `None` in others.
    """

    half: GraphHalf
    run: BoxedCallable
    inputs: tuple[int, ...] | None
    undefined: frozenset[int] | None = None

    def __call__(self, values: list[Any]) -> Sequence[torch.Tensor | None]:
        """Runs on the full graph's inputs. Clears the list, so that each value can be freed at its last use."""
        if self.inputs is not None:
            values[:] = [values[position] for position in self.inputs]
        results = self.run(values)
        if not self.undefined:
            return results
        return [None if k in self.undefined else result for k, result in enumerate(results)]


VARIANT_LIMIT = 64
"""How many variants of one graph are kept: those that were used last."""


@dataclass
class VariantCache:
    """The variants of one backward graph. `gradients` are those that its node returns, in order.

    `whole` is the variant of the usual case, every tangent and every gradient; `None` until it is needed, then kept.
    `run_whole` is what it runs.
    """

    full: GraphHalf
    compile: Callable[[GraphHalf], BoxedCallable]
    gradients: tuple[Gradient, ...]
    variants: OrderedDict[VariantKey, Variant] = field(default_factory=OrderedDict)
    whole: Variant | None = None
    run_whole: BoxedCallable | None = None
    graphs: OrderedDict[VariantKey, tuple[GraphHalf, frozenset[int] | None]] = field(default_factory=OrderedDict)

    def get(self, key: VariantKey) -> Variant:
        if not key.is_full:
            return recent(self.variants, key, self.make)
        if self.whole is None:
            self.whole = recent(self.variants, key, self.make)
            self.run_whole = self.whole.run
        return self.whole

    def full_key(self) -> VariantKey:
        return VariantKey((True,) * len(self.full.signature.incoming), (True,) * len(self.gradients))

    def make(self, key: VariantKey) -> Variant:
        """Compile the variant of `key`.

        A symbolic graph is not specialised if that would add guards: whoever checks guards has read them by now.
        """
        if key.is_full:
            return self.compiled(self.full)
        try:
            guards = guards_of(self.full)
            variant = self.compiled(specialize(self.full, key, self.gradients))
            return variant if guards_of(self.full) == guards else self.on_zeros(key)
        except CannotMaterialize:
            return self.on_zeros(key)

    def graph(self, key: VariantKey) -> tuple[GraphHalf, frozenset[int] | None]:
        """The graph of a variant as it was traced, and its `undefined`; nothing is compiled."""
        return recent(self.graphs, key, self.make_graph)

    def make_graph(self, key: VariantKey) -> tuple[GraphHalf, frozenset[int] | None]:
        if key.is_full:
            return self.full, None
        try:
            return specialize(self.full, key, self.gradients), None
        except CannotMaterialize:
            return self.full, self.undefined(key)

    def positions(self, half: GraphHalf) -> tuple[int, ...]:
        """Where the inputs of a variant stand among those of the full graph."""
        position_of = {slot: position for position, slot in enumerate(self.full.signature.inputs)}
        return tuple(position_of[slot] for slot in half.signature.inputs)

    def compiled(self, half: GraphHalf) -> Variant:
        """The variant of a graph; backends get a copy, since they may change what they compile."""
        graph, _ = copy_graph(half)
        copy = GraphHalf(LazyGraphModule(half.module, graph), half.signature)
        takes_all = half.signature.inputs == self.full.signature.inputs
        return Variant(half, self.compile(copy), None if takes_all else self.positions(half))

    def on_zeros(self, key: VariantKey) -> Variant:
        """The full graph, called with real zeros for undefined tangents."""
        return replace(self.get(self.full_key()), undefined=self.undefined(key))

    def undefined(self, key: VariantKey) -> frozenset[int]:
        """The results of the full graph that undefined tangents make undefined."""
        placeholders = dict(
            zip(self.full.signature.inputs, self.full.module.graph.find_nodes(op="placeholder"), strict=True)
        )
        tangents = dict(zip(self.full.signature.incoming, key.tangents, strict=True))
        missing = [placeholders[slot] for slot, is_defined in tangents.items() if not is_defined]
        undefined = undefined_outputs(self.full.module.graph, missing, [placeholders[slot] for slot in tangents])
        return frozenset(k for k, is_undefined in enumerate(undefined) if is_undefined)


def sources(half: GraphHalf, gradients: Sequence[Gradient]) -> list[fx.Node | None]:
    """The node that each gradient is a view of, or that it is itself. Who computes one has all that have the same source.

    An op that is told which of its results to compute is no source of all of them.
    """
    (output,) = half.module.graph.find_nodes(op="output")
    found = dict(zip(half.signature.outputs, output.args[0], strict=True))
    return [source(found[gradient]) for gradient in gradients]


def source(node: fx.Node | None) -> fx.Node | None:
    found: Any = node
    while found is not None and (op_table.is_view(found.target) or op_table.is_getitem(found.target)):
        if op_table.is_getitem(found.target) and op_table.position_of_mask(found.args[0].target) is not None:
            return found
        found = found.args[0]
    return found


def recent(cache: OrderedDict[VariantKey, T], key: VariantKey, make: Callable[[VariantKey], T]) -> T:
    """The value of `key`, made if it is not there; what was used longest ago is dropped where there are too many."""
    try:
        cache.move_to_end(key)
        return cache[key]
    except KeyError:
        pass
    with COMPILING:
        value = cache.get(key)  # another thread may have made it meanwhile
        if value is None:
            value = cache[key] = make(key)
        while len(cache) > VARIANT_LIMIT:
            cache.popitem(last=False)
    return value


def guards_of(half: GraphHalf) -> int:
    """How many symbolic guards the graph's trace has; 0 for a graph without symbolic sizes."""
    values = (node.meta.get("val") for node in half.module.graph.find_nodes(op="placeholder"))
    return max((torch_compat.guard_count(value) for value in values if isinstance(value, torch.Tensor)), default=0)


def specialize(full: GraphHalf, key: VariantKey, gradients: Sequence[Gradient]) -> GraphHalf:
    """`full` without undefined tangents, unwanted gradients, and everything that only they needed.

    Raises:
        CannotMaterialize: zeros of symbolic size would be needed.
    """
    wanted = {gradient for gradient, is_wanted in zip(gradients, key.gradients, strict=True) if is_wanted}
    graph, placeholders = copy_graph(full)
    tangents = dict(zip(full.signature.incoming, key.tangents, strict=True))
    undefined = [placeholders[slot] for slot, is_defined in tangents.items() if not is_defined]
    remove_undefined(graph, undefined, [placeholders[slot] for slot in tangents])
    keep_outputs(graph, full.signature.outputs, wanted)
    remove_dead_code(graph)
    for node in graph.nodes:
        narrow_mask(node)
    inputs = needed_inputs(placeholders)
    for slot in placeholders.keys() - set(inputs):
        graph.erase_node(placeholders[slot])
    module = LazyGraphModule(full.module, graph)
    return GraphHalf(module, GraphSignature(tuple(inputs), full.signature.outputs))


def needed_inputs(placeholders: Mapping[Any, fx.Node], kept: Collection[Any] = ()) -> list[Any]:
    """The inputs that are read or `kept`, and those that bind the symbols in their sizes, where backends look for them."""
    values = {slot: node.meta.get("val") for slot, node in placeholders.items()}
    read = {slot for slot, node in placeholders.items() if node.users or slot in kept}
    symbols = {symbol for slot in read for symbol in symbols_of(values[slot])}
    return [slot for slot, value in values.items() if slot in read or bound_symbol(value) in symbols]


def copy_graph(half: GraphHalf) -> tuple[fx.Graph, dict[Any, fx.Node]]:
    """A copy of the graph with its `meta`, and its placeholders by slot."""
    graph = fx.Graph()
    results = graph.graph_copy(half.module.graph, {})
    graph.output(results)
    nodes = graph.find_nodes(op="placeholder")
    return graph, dict(zip(half.signature.inputs, nodes, strict=True))


def keep_outputs(graph: fx.Graph, slots: Sequence[Any], wanted: set[Gradient]) -> None:
    """Return `None` in place of gradients that are not wanted. What is left in memory does not depend on who wants what."""
    (output,) = graph.find_nodes(op="output")
    pairs = zip(slots, output.args[0], strict=True)
    output.args = (tuple(node if slot in wanted or isinstance(slot.of, Memory) else None for slot, node in pairs),)


def remove_dead_code(graph: fx.Graph) -> None:
    """Erase what no output needs. A backward has no effects of its own but for random ops and writes."""
    for node in reversed(graph.nodes):
        is_needed = node.op in ("placeholder", "output") or node.users
        if not is_needed and (node.target is operator.getitem or not node.is_impure()):
            graph.erase_node(node)
