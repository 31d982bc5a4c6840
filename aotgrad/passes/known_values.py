"""Reuses values that an earlier graph computed: the graph's inputs hold them, and replace their computation.

    first   forward(x, w):        h = mm(x, w); y = tanh(h)                      saves y
    second  vjp(x, w, t, saved):  h = mm(x, w); y = tanh(h); g = t * (1 - y * y)
    becomes                       g = t * (1 - saved * saved)                    with the derivatives that were traced for y

Two nodes compute the same value if they apply the same op to the same values: both graphs are numbered together (value
numbering). A random op equals the op at the same position among the random ops of the other graph. Equal calls of an op with
an effect are matched in order. Each graph has symbols of its own for sizes: two numbers are equal if they are the same
expression in the sizes of common inputs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.closed_over import FOLDED
from aotgrad.graph.equality import call_key
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.graph.symbols import SYMBOLIC_NUMBERS, bound_symbol
from aotgrad.ir import JointGraph
from aotgrad.passes.constants import pool_key
from aotgrad.passes.repeated_effects import erase_unused_repeats
from aotgrad.slots import FORWARD_RESULTS, Tangent


@dataclass(frozen=True)
class KnownValues:
    """Inputs of a graph that hold values of another graph, `source`.

    `inputs` maps inputs of the source to inputs of the graph. `nodes` maps an input to the name of the node of the source
    whose value it holds. `earlier` has the known values of the source itself.
    """

    source: JointGraph
    inputs: Mapping[int, int]
    nodes: Mapping[int, str]
    earlier: KnownValues | None

    def with_inputs(self, others: Mapping[int, int]) -> KnownValues:
        """The same, with other common inputs besides."""
        return replace(self, inputs={**self.inputs, **others})

    def at(self, positions: Sequence[int]) -> KnownValues:
        """The known values of a graph whose input `positions[k]` is input k of this one."""
        inputs = {k: positions[position] for k, position in self.inputs.items()}
        nodes = {positions[k]: name for k, name in self.nodes.items()}
        return KnownValues(self.source, inputs, nodes, self.earlier and self.earlier.at(positions))


def take_known_values(joint: JointGraph, known: KnownValues | None, depth: int = 1) -> JointGraph:
    """`joint` with known values taken from its inputs. Changes `joint` in place.

    Args:
        depth: how often the source is repeated in `joint`. Effects that the source has not repeated are not in it either.
    """
    if known is None:
        return joint
    if known.earlier is None:
        erase_unused_repeats(joint.module.graph, depth + 1)
    else:
        take_known_values(joint, known.earlier, depth + 1)
    numbers: dict[Hashable, int] = {}
    placeholders = joint.module.graph.find_nodes(op="placeholder")
    of_source = known.source.module.graph.find_nodes(op="placeholder")
    renaming = symbol_renaming([(placeholders[position], of_source[k]) for k, position in known.inputs.items()])
    unchanged = {symbol: symbol for expression in renaming.values() for symbol in expression.free_symbols}
    in_source = number_nodes(known.source, numbers, known.inputs, unchanged)
    here = number_nodes(joint, numbers, {k: k for k in range(len(placeholders))}, renaming)
    sources = {in_source[name]: placeholders[k] for k, name in known.nodes.items() if name in in_source}
    taken = []
    for node in list(joint.module.graph.nodes):
        source = sources.get(here.get(node.name, -1))
        if source is not None and node.op == "call_function" and same_layout(node, source):
            node.replace_all_uses_with(source)
            taken.append((node, source))
    read_sizes_of_inputs(joint, taken)
    erase_unused_repeats(joint.module.graph, depth)
    joint.module.recompile()
    return joint


def mark_kept_values(joint: JointGraph, known: KnownValues | None) -> JointGraph:
    """`joint` with known values, and the inputs that they were computed from, marked as inputs that are alive anyway.

    The earlier node holds the saved values and the inputs of the call, so saving them is free.
    """
    if known is None:
        return joint
    joint = mark_kept_values(joint, known.earlier)
    returned = {memory_owner(node) for node in results_of(known.source)}
    visible = {node.name for node in known.source.module.graph.nodes if memory_owner(node) in returned}
    private = {position for position, name in known.nodes.items() if name not in visible}
    held = joint.held_inputs | known.nodes.keys() | set(known.inputs.values())
    return replace(joint, held_inputs=held, private_inputs=joint.private_inputs | private)


def results_of(joint: JointGraph) -> list[fx.Node]:
    """The nodes that the forward returns."""
    pairs = joint.results.items()
    return [node for slot, node in pairs if isinstance(slot, FORWARD_RESULTS) and isinstance(node, fx.Node)]


def read_sizes_of_inputs(joint: JointGraph, taken: Sequence[tuple[fx.Node, fx.Node]] = ()) -> None:
    """Read sizes from inputs that have them, where possible: a value need not be computed for its size alone.

    Not from tangents: neither the forward nor another segment of the backward has them.

    Args:
        taken: nodes, and the inputs that have replaced them.
    """
    inputs = [node for slot, node in joint.placeholders.items() if not isinstance(slot, Tangent)]
    places: dict[Any, tuple[fx.Node, int]] = {}
    for node, source in (*zip(inputs, inputs, strict=True), *taken):
        for dim, size in enumerate(getattr(node.meta["val"], "shape", ())):
            places.setdefault(torch_compat.expression_of(size), (source, dim))
    for node in joint.module.graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int):
        node.args = places.get(torch_compat.expression_of(node.meta["val"]), node.args)


Renaming = Mapping[sympy.Basic, sympy.Basic]
"""Symbols of one graph, as expressions in the symbols of another graph."""


def symbol_renaming(pairs: Sequence[tuple[fx.Node, fx.Node]]) -> Renaming:
    """The symbols in the sizes and strides of inputs; the second of each pair is the same input in the other graph."""
    found: dict[sympy.Basic, sympy.Basic] = {}
    for one, other in pairs:
        for number, same in zip(numbers_in(one), numbers_in(other), strict=False):
            if (symbol := bound_symbol(number)) is not None:
                found.setdefault(symbol, sympy.sympify(torch_compat.expression_of(same)))
    return found


def numbers_in(node: fx.Node) -> Sequence[Any]:
    """The sizes and strides of a tensor, or a number itself: in the other graph, it may be the size of a tensor."""
    value = node.meta["val"]
    return (*value.size(), *torch_compat.strides(value)) if isinstance(value, torch.Tensor) else (value,)


def number_nodes(
    joint: JointGraph, known: dict[Hashable, int], inputs: Mapping[int, int], renaming: Renaming
) -> dict[str, int]:
    """The number of each node by its name.

    A copy has the number of its original. A constant equals those that were computed from numbers to the same bits.

    Args:
        known: the numbers so far; it gets the new ones.
        inputs: what identifies placeholders that both graphs have.
        renaming: the symbols that both graphs have.
    """
    found: dict[str, int] = {}
    random_ops = 0
    with_effects: Counter[Any] = Counter()
    positions = itertools.count()
    for node in joint.module.graph.nodes:
        key: Any = ("of this graph", id(joint), node.name)
        position = next(positions) if node.op == "placeholder" else -1
        if (expression := common_expression(node, renaming)) is not None:
            key = ("number", expression)
        elif position in inputs:
            key = ("input", inputs[position])
        elif node.op == "get_attr" and str(node.target).startswith(FOLDED):
            key = ("constant", *pool_key(getattr(joint.module, str(node.target))))
        elif node.op == "call_function":
            is_random = op_table.draws(node)
            random_ops += is_random
            call = call_key(node, lambda argument: found[argument.name])
            key = key if call is None else (call, random_ops if is_random else None)
            if op_table.has_effect(node.target):
                with_effects[key] += 1
                key = (*key, with_effects[key])
        is_copy = node.target is torch.ops.aten.clone.default
        found[node.name] = found[node.args[0].name] if is_copy else known.setdefault(key, len(known))
    return found


def common_expression(node: fx.Node, renaming: Renaming) -> sympy.Basic | None:
    """A symbolic number in the symbols of the other graph; `None` if it has others, or for a tensor."""
    value = node.meta.get("val")
    if not isinstance(value, SYMBOLIC_NUMBERS) or not value.node.expr.free_symbols <= renaming.keys():
        return None
    return value.node.expr.xreplace(renaming)


def same_layout(node: fx.Node, source: fx.Node) -> bool:
    """Whether two nodes have one dtype, size and stride, if they have the same value."""
    one, other = node.meta.get("val"), source.meta.get("val")
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or one.dtype != other.dtype:
        return False
    same_size = torch_compat.assumed_equal(one.size(), other.size())
    return same_size and torch_compat.assumed_equal(torch_compat.strides(one), torch_compat.strides(other))
