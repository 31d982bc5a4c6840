"""Assigns each node of the joint graph to a half, and finds which nodes share memory.

In: a `JointGraph`. Out: a `JointAnalysis` for the policy, the flow network and the extraction.

    primals_1, tangents_1 -> a = sin(primals_1); c = cos(primals_1); g = mul(tangents_1, c) -> [a, g]

Here `a` runs in the forward. `g` depends on a tangent and runs in the backward. `c` is *unclaimed*: only the backward
needs it, but either half could run it. The node lists keep the order of the joint graph.

Every node has a *base*: the node that owns its memory. For nodes other than views, this is the node itself.

Limits: in a graph of another tracer, a node counts as traced by the backward if its `partitioner_tag` says so or if it comes
after the first op that depends on a tangent. This matters only for random and effectful ops that depend on no tangent.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.fx as fx

from aotgrad.errors import PartitionError
from aotgrad.graph import op_table
from aotgrad.graph.closed_over import closed_over_nodes
from aotgrad.graph.dependents import dependencies_of
from aotgrad.graph.memory_owners import memory_owners, viewed_node
from aotgrad.ir import JointGraph
from aotgrad.partition.tags import RECOMPUTE, SAVE, Tag, read_outside, verdict_of
from aotgrad.slots import FORWARD_RESULTS, Gradient, IntermediateBase, Primal, Tangent, UserOutput


@dataclass(frozen=True, eq=False)
class JointAnalysis:
    """The nodes of a joint graph by role; all sets hold live nodes only.

    Attributes:
        forward: nodes that the forward always runs, primals included.
        backward: nodes that depend on a tangent, and effects and random ops from the trace of the backward.
        unclaimed: nodes that only the backward needs but that depend on no tangent.
        base: the owner of the memory of each node.
        copied: primals whose data does not survive the forward, and views of them that cannot be taken of a copy. If
            they are saved, a copy is.
        held: nodes whose memory stays alive after the forward anyway: outputs, and primals that outlive the call.
        outside: tensors that the forward reads and that the function has closed over.
    """

    joint: JointGraph
    nodes: tuple[fx.Node, ...]
    position: dict[fx.Node, int]
    primals: dict[fx.Node, Primal]
    tangents: dict[fx.Node, Tangent]
    results: tuple[Any, ...]
    gradients: tuple[Any, ...]
    forward: frozenset[fx.Node]
    backward: frozenset[fx.Node]
    unclaimed: frozenset[fx.Node]
    base: dict[fx.Node, fx.Node]
    copied: frozenset[fx.Node]
    held: frozenset[fx.Node]
    outside: frozenset[fx.Node]

    def in_order(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        return sorted(set(nodes), key=self.position.__getitem__)

    def is_view(self, node: fx.Node) -> bool:
        return self.base[node] is not node

    @functools.cached_property
    def support(self) -> dict[fx.Node, tuple[fx.Node, ...]]:
        """What each value consists of if views are free: its base, and the sizes that its views take."""
        support: dict[fx.Node, tuple[fx.Node, ...]] = {}
        for node in self.nodes:
            if self.is_view(node):
                support[node] = tuple(dict.fromkeys(item for arg in node.all_input_nodes for item in support[arg]))
            else:
                support[node] = (node,)
        return support

    @functools.cached_property
    def tagged(self) -> dict[fx.Node, Tag]:
        """The user's tags. An unclaimed value that reads a value tagged RECOMPUTE has that tag, too."""
        tagged: dict[fx.Node, Tag] = {}
        later = [node for node in self.nodes if node in self.backward or node in self.unclaimed]
        kept = {self.base[node] for node in read_outside(self.forward, later)}
        for node in self.nodes:
            tag = SAVE if node in kept else verdict_of(node)
            if tag is None and node in self.unclaimed:
                tag = RECOMPUTE if any(tagged.get(arg) is RECOMPUTE for arg in node.all_input_nodes) else None
            if tag is not None:
                tagged[node] = tag
        return tagged

    @functools.cached_property
    def closed_over(self) -> frozenset[fx.Node]:
        """The tensors from `outside` that the backward must not read again: others may change them.

        A checkpoint reads what the function has closed over again, in eager, too.
        """
        return frozenset(node for node in self.outside if any(self.tagged.get(user) is not RECOMPUTE for user in node.users))

    @functools.cached_property
    def made_of_nothing(self) -> frozenset[fx.Node]:
        """Unclaimed values that no input leads to: eager makes them in the backward, and saves nothing."""
        found: set[fx.Node] = set()
        for node in self.in_order(self.unclaimed):
            if found.issuperset(node.all_input_nodes):
                found.add(node)
        return frozenset(found)

    @functools.cached_property
    def read_by_checkpoints(self) -> frozenset[fx.Node]:
        """What recomputing tagged values reads: a checkpoint keeps it in eager, too."""
        recomputed = [node for node, tag in self.tagged.items() if tag is RECOMPUTE]
        return frozenset(item for node in recomputed for arg in node.all_input_nodes for item in self.support[arg])

    def reads(self, readers: Collection[fx.Node], outside: Collection[fx.Node]) -> dict[fx.Node, fx.Node | None]:
        """The supports within `outside` of the values that `readers` and the gradients read, each with its first reader.

        If a value is returned as a gradient, its reader is `None`.
        """
        pairs = [(arg, node) for node in self.in_order(readers) for arg in node.all_input_nodes]
        pairs += [(gradient, None) for gradient in _only_nodes(self.gradients)]
        reads: dict[fx.Node, fx.Node | None] = {}
        for arg, reader in pairs:
            for item in self.support[arg] if arg in outside else ():
                reads.setdefault(item, reader)
        return reads

    @functools.cached_property
    def crossing(self) -> dict[fx.Node, fx.Node | None]:
        """The values that the halves exchange if the forward runs only its own nodes, each with its first reader.

        Eager saves these, except where its backward formula of an op is another one.
        """
        items = self.reads(self.backward | self.unclaimed, self.forward)
        return {node: reader for node, reader in items.items() if node.op != "get_attr" or node in self.closed_over}

    @functools.cached_property
    def saved_in_eager(self) -> frozenset[fx.Node]:
        """The inputs and results in whose memory eager saves a value, even if formulas here do not read it."""
        slots = self.joint.saved_in_eager
        inputs = (node for node, slot in self.primals.items() if slot in slots)
        outputs = zip(self.joint.signature.outputs, self.results, strict=False)
        results = (value for slot, value in outputs if slot in slots and isinstance(value, fx.Node))
        return frozenset((*inputs, *results))


def analyze_joint(joint: JointGraph) -> JointAnalysis:
    """Sort the nodes of `joint` into forward, backward and unclaimed.

    Raises:
        PartitionError: if a forward result depends on a tangent, or the graph does not fit its signature.
    """
    nodes = tuple(joint.module.graph.nodes)
    position = {node: index for index, node in enumerate(nodes)}
    primals, tangents = _input_slots(joint, nodes)
    results, gradients = _outputs(joint, nodes)
    pinned = [node for node in nodes if is_pinned_to_its_half(node)]
    traced_backward = _traced_backward(nodes, set(tangents))
    kept = [node for node in pinned if op_table.is_kept_when_dead(node.target)]
    needed = dependencies_of([*_only_nodes(results), *(node for node in kept if node not in traced_backward)])
    dependent = _users_closure(nodes, {*tangents, *(n for n in pinned if n in traced_backward and n not in needed)})
    _check_no_tangents(needed & dependent)

    live = dependencies_of([*_only_nodes(gradients), *kept]) | needed
    stays = [node for node in pinned if node in live and node not in dependent]
    forward = dependencies_of(stays) | needed | set(primals)
    claim_numbers_and_items(nodes, forward, live - dependent)
    backward = (live & dependent) - set(tangents)
    base, copied = memory_of_nodes(joint, nodes, primals, forward)
    return JointAnalysis(
        joint=joint,
        nodes=nodes,
        position=position,
        primals=primals,
        tangents=tangents,
        results=results,
        gradients=gradients,
        forward=frozenset(forward),
        backward=frozenset(backward),
        unclaimed=frozenset(live - backward - forward - set(tangents)),
        base=base,
        copied=copied,
        held=_held(joint, primals, results, base) - copied,
        outside=frozenset(forward.intersection(closed_over_nodes(joint.module.graph, joint.module))),
    )


def _input_slots(joint: JointGraph, nodes) -> tuple[dict[fx.Node, Primal], dict[fx.Node, Tangent]]:
    placeholders = [node for node in nodes if node.op == "placeholder"]
    slots = joint.signature.inputs
    if len(placeholders) != len(slots):
        raise PartitionError(f"the joint graph has {len(placeholders)} placeholders but its signature {len(slots)}")
    pairs = list(zip(placeholders, slots, strict=True))
    primals = {node: slot for node, slot in pairs if isinstance(slot, Primal)}
    return primals, {node: slot for node, slot in pairs if isinstance(slot, Tangent)}


def _outputs(joint: JointGraph, nodes) -> tuple[tuple[object, ...], tuple[object, ...]]:
    values = tuple(nodes[-1].args[0])
    slots = joint.signature.outputs
    if len(values) != len(slots):
        raise PartitionError(f"the joint graph returns {len(values)} values but its signature has {len(slots)}")
    pairs = list(zip(values, slots, strict=True))
    results = tuple(value for value, slot in pairs if isinstance(slot, FORWARD_RESULTS))
    return results, tuple(value for value, slot in pairs if isinstance(slot, Gradient))


def _only_nodes(values: Iterable[object]) -> list[fx.Node]:
    return [value for value in values if isinstance(value, fx.Node)]


def _users_closure(nodes, start: set[fx.Node]) -> set[fx.Node]:
    closure = set(start)
    for node in nodes:
        if node.op != "output" and any(arg in closure for arg in node.all_input_nodes):
            closure.add(node)
    return closure


def is_pinned_to_its_half(node: fx.Node) -> bool:
    """Whether the node must run exactly once, in the half that traced it."""
    if node.op != "call_function":
        return node.op in ("call_module", "call_method")
    return op_table.runs_once(node.target)


def _traced_backward(nodes, tangents: set[fx.Node]) -> set[fx.Node]:
    traced: set[fx.Node] = set()
    after_first = False
    for node in nodes:
        after_first = after_first or any(arg in tangents for arg in node.all_input_nodes)
        if after_first or node.meta.get("autograd_backward") or node.meta.get("partitioner_tag") == "is_backward":
            traced.add(node)
    return traced


def _check_no_tangents(nodes: set[fx.Node]) -> None:
    if nodes:
        names = ", ".join(sorted(node.name for node in nodes)[:3])
        raise PartitionError(f"the forward needs values that depend on a tangent: {names}")


def claim_numbers_and_items(nodes, forward: set[fx.Node], movable: set[fx.Node]) -> None:
    """Add to `forward` the items of its tuples, and numbers, which are cheaper to save than their tensors."""
    for node in nodes:
        if node not in movable or node in forward or node.op != "call_function":
            continue
        if op_table.is_getitem(node.target) and node.args[0] in forward and viewed_node(node) is None:
            forward.add(node)
        elif op_table.is_symbolic_value(node):
            _claim_number(node, forward)


def _claim_number(node: fx.Node, forward: set[fx.Node]) -> None:
    missing = dependencies_of([node], known=forward)
    if all(viewed_node(n) is not None or op_table.is_symbolic_value(n) for n in missing):
        forward |= missing


def memory_of_nodes(
    joint: JointGraph, nodes: Collection[fx.Node], primals: Mapping[fx.Node, Primal], forward: Collection[fx.Node]
) -> tuple[dict[fx.Node, fx.Node], frozenset[fx.Node]]:
    """The base of each node, and the nodes that are copied if they are saved.

    `as_strided` counts from the start of the storage, where the copy of a primal may not start, so such a view of an
    overwritten primal is copied by itself.
    """
    base = memory_owners(nodes)
    overwritten = {node for node, slot in primals.items() if slot.index in joint.mutated_inputs}
    overwritten |= _written_in_graph(forward, base) & primals.keys()
    absolute = {
        node
        for node in nodes
        if base[node] in overwritten and op_table.op_name(node.target) == "aten.as_strided" and node not in overwritten
    }
    return (memory_owners(nodes, absolute) if absolute else base), frozenset(overwritten | absolute)


def _written_in_graph(nodes: Iterable[fx.Node], base) -> set[fx.Node]:
    writes = [node for node in nodes if node.op == "call_function" and op_table.writes_first_argument(node.target)]
    return {base[node.args[0]] for node in writes}


def _held(joint: JointGraph, primals, results, base) -> frozenset[fx.Node]:
    held = {node for node, slot in primals.items() if slot.index in joint.static_inputs | joint.held_inputs}
    for slot, value in zip(joint.signature.forward_results, results, strict=True):
        if isinstance(value, fx.Node) and isinstance(slot, (UserOutput, IntermediateBase)):
            held.add(base[value])
    return frozenset(held)
