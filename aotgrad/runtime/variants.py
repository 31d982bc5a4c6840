"""Variants of a backward graph: the rest of it if some tangents are undefined or some gradients are not wanted.

The full graph is specialized once per key, compiled lazily, and kept. A training step uses one variant. Threads that need
the same variant at the same time compile it once.

    key: tangents (True, False), gradients (True, True)  ->  a graph without tangent 1 and all that only it needs
"""

from __future__ import annotations

import functools
import logging
import operator
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.errors import CaptureError
from aotgrad.graph import op_table
from aotgrad.graph.cases import resolve_cases
from aotgrad.graph.collectives import communicating
from aotgrad.graph.ends import output_node, outputs_of
from aotgrad.graph.gradient_masks import narrow
from aotgrad.graph.symbols import bound_symbol, symbols_of
from aotgrad.ir import BoxedCallable, GraphHalf
from aotgrad.plan_cache.lock import COMPILING
from aotgrad.plan_cache.unfinished import Unfinished, leaving_unfinished
from aotgrad.runtime.backward_facts import BackwardFacts
from aotgrad.runtime.overwritable import are_owned
from aotgrad.runtime.zeros import CannotMaterialize, remove_undefined, undefined_outputs
from aotgrad.slots import Gradient, Memory, Saved, SlotSignature

T = TypeVar("T")

log = logging.getLogger("aotgrad.runtime")


@dataclass(frozen=True)
class VariantKey:
    """Which tangents are defined and which gradients are wanted, in the order of the node's outputs and inputs."""

    tangents: tuple[bool, ...]
    gradients: tuple[bool, ...]

    @property
    def is_full(self) -> bool:
        return all(self.tangents) and all(self.gradients)


@dataclass(frozen=True)
class Variant:
    """A backward graph for one key, and how to call it.

    `inputs` are positions in the full graph's inputs; `None` if it takes all. The results are those of the full graph.
    A variant that could not be specialized runs on real zeros; `undefined` are the results that it drops after the call.
    In others, `undefined` is `None`.
    """

    half: GraphHalf
    run: BoxedCallable
    inputs: tuple[int, ...] | None
    undefined: frozenset[int] | None = None

    def __call__(self, values: list[Any]) -> Sequence[torch.Tensor | None]:
        """Run on the full graph's inputs. Clear the list, so that each value is freed at its last use."""
        if self.inputs is not None:
            values[:] = [values[position] for position in self.inputs]
        results = self.run(values)
        if not self.undefined:
            return results
        return [None if k in self.undefined else result for k, result in enumerate(results)]


@dataclass
class EarlyVariant:
    """The variant that a first backward is likely to need, compiled while compilers of the forward ran.

    `overwritable`: the values that it writes over. `rest`: what is left to do before it may run.
    """

    variant: Variant
    overwritable: frozenset[Saved]
    rest: Unfinished

    def finished(self) -> Variant | None:
        """The variant, ready to run; `None` if that failed, so that it is compiled anew, which reports the error."""
        try:
            self.rest.finish()
        except Exception as error:
            log.debug("a backward that was compiled early is compiled again: %s", error)
            return None
        return self.variant


VARIANT_LIMIT = 64
"""How many variants of one graph are kept, the most recently used ones."""


@dataclass
class VariantCache:
    """The variants of one backward graph. `gradients` are those that its node returns, in order; `facts` are of the graph.

    `whole` is the variant with every tangent and every gradient, the usual case; `None` until it is first needed.
    `run_whole` is what it runs. `run_over` is the same graph, compiled to write over `overwritable`.
    """

    full: GraphHalf
    compile: Callable[[GraphHalf], BoxedCallable]
    gradients: tuple[Gradient, ...]
    facts: BackwardFacts
    overwritable: frozenset[Saved] = frozenset()
    variants: OrderedDict[VariantKey, Variant] = field(default_factory=OrderedDict)
    whole: Variant | None = None
    run_whole: BoxedCallable | None = None
    run_over: BoxedCallable | None = None
    graphs: OrderedDict[VariantKey, tuple[GraphHalf, frozenset[int] | None]] = field(default_factory=OrderedDict)
    early: EarlyVariant | None = None

    def get(self, key: VariantKey) -> Variant:
        if not key.is_full:
            return get_or_make(self.variants, key, self.make)
        if self.whole is None:
            self.whole = get_or_make(self.variants, key, self.make)
        return self.whole

    def whole_for(self, values: Sequence[Any], is_last: bool) -> BoxedCallable:
        """What computes all gradients from these inputs; compiled if it is missing.

        Args:
            is_last: the node frees what it has saved.
        """
        if is_last and self.overwritable_positions and are_owned(values, self.overwritable_positions):
            return self.run_over or self.compile_over()
        if self.run_whole is None:
            whole = self.get(self.full_key())
            self.run_whole = whole.run if whole.inputs is None else whole
        return self.run_whole

    def compile_over(self) -> BoxedCallable:
        with COMPILING:
            if self.run_over is None:
                half = self.graph(self.full_key())[0]
                self.run_over = self.compile_half(half, self.overwritable).run
            return self.run_over

    def compile_early(self) -> None:
        """Compile what the first backward is likely to need, and leave it unfinished. An error is left to that backward."""
        if self.facts.has_cases or self.variants:
            return
        over = self.overwritable if self.overwritable_positions else frozenset()
        with COMPILING, torch.no_grad(), leaving_unfinished() as rest:
            try:
                self.early = EarlyVariant(self.compile_half(self.full, over), over, rest)
            except Exception as error:
                log.debug("a backward is not compiled early: %s", error)

    def take_early(self, half: GraphHalf, overwritable: frozenset[Saved]) -> Variant | None:
        """The variant that was compiled early, if it is this one."""
        early = self.early
        if early is None or early.variant.half is not half or early.overwritable != overwritable:
            return None
        self.early = None
        return early.finished()

    @functools.cached_property
    def overwritable_positions(self) -> tuple[int, ...]:
        """The positions of `overwritable` among the inputs; none if the graph depends on which tangents are defined."""
        inputs = enumerate(() if self.facts.has_cases else self.full.signature.inputs)
        return tuple(k for k, slot in inputs if slot in self.overwritable)

    def full_key(self) -> VariantKey:
        return VariantKey((True,) * len(self.full.signature.incoming), (True,) * len(self.gradients))

    def make(self, key: VariantKey) -> Variant:
        """Compile the variant of `key`.

        A symbolic graph is not specialized if that would add guards: the guards of the plan have been read by now.
        """
        guards = self.full.guard_count()
        half, undefined = self.graph(key)
        if key.is_full:
            return self.compile_half(half)
        if undefined is not None:
            return self.variant_on_zeros(undefined)
        variant = self.compile_half(half)
        is_guarded = self.full.guard_count() != guards
        return self.variant_on_zeros(self.undefined_results(key)) if is_guarded else variant

    def graph(self, key: VariantKey) -> tuple[GraphHalf, frozenset[int] | None]:
        """The graph of a variant as it was traced, and its `undefined`; compiles nothing.

        Another process may have stored it in `graphs`.
        """
        return get_or_make(self.graphs, key, self.make_graph)

    def make_graph(self, key: VariantKey) -> tuple[GraphHalf, frozenset[int] | None]:
        if key.is_full and not self.facts.has_cases:
            return self.full, None
        try:
            return specialize(self.full, key, self.gradients), None
        except CannotMaterialize:
            return self.full, self.undefined_results(key)

    def positions(self, half: GraphHalf) -> tuple[int, ...]:
        """The positions of a variant's inputs among those of the full graph."""
        position_of = {slot: position for position, slot in enumerate(self.full.signature.inputs)}
        return tuple(position_of[slot] for slot in half.signature.inputs)

    def compile_half(self, half: GraphHalf, overwritable: frozenset[Saved] = frozenset()) -> Variant:
        """Compile a graph, unless that was begun early. The backend gets a copy, since it may change what it compiles."""
        if (early := self.take_early(half, overwritable)) is not None:
            return early
        copy = half.for_backend(overwritable)
        takes_all = half.signature.inputs == self.full.signature.inputs
        return Variant(half, self.compile(copy), None if takes_all else self.positions(half))

    def variant_on_zeros(self, undefined: frozenset[int]) -> Variant:
        """The full graph, called with real zeros for undefined tangents, which make some results undefined.

        Raises:
            CaptureError: the graph computes something else if a tangent is undefined.
        """
        if self.facts.has_cases:
            raise CaptureError(
                "a backward through an autograd function with set_materialize_grads(False) would need zeros of a symbolic "
                "size for undefined gradients; compile the function with dynamic=False"
            )
        return replace(self.get(self.full_key()), undefined=undefined)

    def undefined_results(self, key: VariantKey) -> frozenset[int]:
        """The results of the full graph that undefined tangents make undefined."""
        placeholders = self.full.placeholders
        tangents = dict(zip(self.full.signature.incoming, key.tangents, strict=True))
        missing = [placeholders[slot] for slot, is_defined in tangents.items() if not is_defined]
        undefined = undefined_outputs(self.full.module.graph, missing, [placeholders[slot] for slot in tangents])
        return frozenset(k for k, is_undefined in enumerate(undefined) if is_undefined)


def get_or_make(cache: OrderedDict[VariantKey, T], key: VariantKey, make: Callable[[VariantKey], T]) -> T:
    """The value of `key`, made if it is missing. If there are too many, the least recently used value is dropped."""
    try:
        cache.move_to_end(key)
        return cache[key]
    except KeyError:
        pass
    with COMPILING:
        value = cache.get(key)  # another thread may have made it
        if value is None:
            value = cache[key] = make(key)
        while len(cache) > VARIANT_LIMIT:
            cache.popitem(last=False)
    return value


def specialize(full: GraphHalf, key: VariantKey, gradients: Sequence[Gradient]) -> GraphHalf:
    """`full` without undefined tangents, unwanted gradients, and everything that only these need.

    Raises:
        CannotMaterialize: the graph needs zeros of symbolic size.
    """
    wanted = {gradient for gradient, is_wanted in zip(gradients, key.gradients, strict=True) if is_wanted}
    copy = full.copy()
    graph, placeholders = copy.module.graph, copy.placeholders
    tangents = dict(zip(full.signature.incoming, key.tangents, strict=True))
    undefined = [placeholders[slot] for slot, is_defined in tangents.items() if not is_defined]
    without = resolve_cases(graph, undefined)
    remove_undefined(graph, [*undefined, *without], [*(placeholders[slot] for slot in tangents), *without])
    keep_outputs(graph, full.signature.outputs, wanted)
    defined = {slot for slot, is_defined in tangents.items() if is_defined}
    idle = {node for node, between in communicating(graph) if not between.runs(defined, wanted, all(key.gradients))}
    idle |= {node for node in graph.nodes if op_table.communicates(node.target) and not node.meta.get("autograd_backward")}
    remove_dead_code(graph, idle)
    for node in graph.nodes:
        narrow(node)
    inputs = needed_inputs(placeholders)
    for slot in placeholders.keys() - set(inputs):
        graph.erase_node(placeholders[slot])
    return replace(copy, signature=SlotSignature(tuple(inputs), full.signature.outputs))


def needed_inputs(placeholders: Mapping[Any, fx.Node], kept: Collection[Any] = ()) -> list[Any]:
    """The inputs that are read or `kept`, and those that bind the symbols in their sizes for backends."""
    values = {slot: node.meta.get("val") for slot, node in placeholders.items()}
    read = {slot for slot, node in placeholders.items() if node.users or slot in kept}
    symbols = {symbol for slot in read for symbol in symbols_of(values[slot])}
    return [slot for slot, value in values.items() if slot in read or bound_symbol(value) in symbols]


def keep_outputs(graph: fx.Graph, slots: Sequence[Any], wanted: set[Gradient]) -> None:
    """Return `None` for gradients that are not wanted. New values of memory stay, whatever is wanted."""
    output = output_node(graph)
    pairs = zip(slots, outputs_of(graph), strict=True)
    output.args = (tuple(node if slot in wanted or isinstance(slot.of, Memory) else None for slot, node in pairs),)


def remove_dead_code(graph: fx.Graph, idle: Collection[fx.Node] = ()) -> None:
    """Erase what no output needs. The effects of a backward are random ops, writes and collectives; `idle` have none.

    Idle are the collectives that eager does not run, and those that a checkpoint recomputes only for their results.
    """
    for node in reversed(graph.nodes):
        is_needed = node.op in ("placeholder", "output") or node.users
        if not is_needed and (node in idle or node.target is operator.getitem or not torch_compat.is_impure(node)):
            graph.erase_node(node)
