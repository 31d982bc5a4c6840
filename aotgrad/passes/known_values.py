"""Reuses values that an earlier graph computed: the graph's inputs hold them, and replace their computation.

    first   forward(x, w):        h = mm(x, w); y = tanh(h)                      saves y
    second  vjp(x, w, t, saved):  h = mm(x, w); y = tanh(h); g = t * (1 - y * y)
    becomes                       g = t * (1 - saved * saved)                    with the derivatives that were traced for y

Two nodes compute the same value if they apply the same op to the same values: both graphs are numbered together (value
numbering). A random op equals the op at the same position among the random ops of the other graph. Equal calls of an op with
an effect are matched in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph import op_table
from aotgrad.graph.equality import call_key
from aotgrad.graph.memory_owners import memory_owner
from aotgrad.ir import JointGraph
from aotgrad.passes.dead_code import DeadCodeElimination
from aotgrad.slots import FORWARD_RESULTS


@dataclass(frozen=True)
class KnownValues:
    """Inputs of a graph that hold values of another graph, `source`.

    `inputs[i]` is the input of the graph that is input i of the source. `nodes` maps an input to the name of the node of the
    source whose value it holds. `earlier` has the known values of the source itself.
    """

    source: JointGraph
    inputs: tuple[int, ...]
    nodes: Mapping[int, str]
    earlier: KnownValues | None

    def at(self, positions: Sequence[int]) -> KnownValues:
        """The known values of a graph whose input `positions[k]` is input k of this one."""
        inputs = tuple(positions[k] for k in self.inputs)
        nodes = {positions[k]: name for k, name in self.nodes.items()}
        return KnownValues(self.source, inputs, nodes, self.earlier and self.earlier.at(positions))


def take_known_values(joint: JointGraph, known: KnownValues | None) -> JointGraph:
    """`joint` with known values taken from its inputs. Changes `joint` in place."""
    if known is None:
        return joint
    take_known_values(joint, known.earlier)
    numbers = Numbering()
    in_source = number_nodes(known.source, numbers, known.inputs)
    here = number_nodes(joint, numbers, range(len(joint.signature.inputs)))
    placeholders = joint.module.graph.find_nodes(op="placeholder")
    sources = {in_source[name]: placeholders[k] for k, name in known.nodes.items() if name in in_source}
    for node in list(joint.module.graph.nodes):
        source = sources.get(here.get(node.name, -1))
        if source is not None and node.op == "call_function" and same_layout(node, source):
            node.replace_all_uses_with(source)
    joint = DeadCodeElimination().apply(joint)
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
    held = joint.held_inputs | known.nodes.keys() | set(known.inputs)
    return replace(joint, held_inputs=held, private_inputs=joint.private_inputs | private)


def results_of(joint: JointGraph) -> list[fx.Node]:
    """The nodes that the forward returns."""
    pairs = joint.results.items()
    return [node for slot, node in pairs if isinstance(slot, FORWARD_RESULTS) and isinstance(node, fx.Node)]


@dataclass
class Numbering:
    """One number for each value: equal keys get equal numbers."""

    numbers: dict[Any, int] = field(default_factory=dict)

    def of(self, key: Any) -> int:
        return self.numbers.setdefault(key, len(self.numbers))


def number_nodes(joint: JointGraph, numbers: Numbering, inputs: Sequence[int]) -> dict[str, int]:
    """The number of each node by its name; `inputs[i]` identifies placeholder i.

    A copy has the number of its original. A constant equals no other node.
    """
    found: dict[str, int] = {}
    random_ops = 0
    with_effects: Counter[Any] = Counter()
    placeholders = iter(inputs)
    for node in joint.module.graph.nodes:
        key: Any = ("of this graph", id(joint), node.name)
        if node.op == "placeholder":
            key = ("input", next(placeholders, key))
        elif node.op == "call_function":
            is_random = op_table.draws(node)
            random_ops += is_random
            call = call_key(node, lambda argument: found[argument.name])
            key = key if call is None else (call, random_ops if is_random else None)
            if op_table.has_effect(node.target):
                with_effects[key] += 1
                key = (*key, with_effects[key])
        is_copy = node.target is torch.ops.aten.clone.default
        found[node.name] = found[node.args[0].name] if is_copy else numbers.of(key)
    return found


def same_layout(node: fx.Node, source: fx.Node) -> bool:
    one, other = node.meta.get("val"), source.meta.get("val")
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or one.dtype != other.dtype:
        return False
    same_size = torch_compat.known_equal(one.size(), other.size())
    return same_size and torch_compat.known_equal(torch_compat.strides(one), torch_compat.strides(other))
