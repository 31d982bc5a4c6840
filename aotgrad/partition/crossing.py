"""The values that the forward hands to the backward, with the slots that name them in both signatures."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad.errors import PartitionError
from aotgrad.graph import op_table
from aotgrad.graph.draws import fake_random_state
from aotgrad.graph.source_lines import source_line
from aotgrad.graph.symbols import bound_symbol, symbols_of
from aotgrad.ir import SavedValue
from aotgrad.partition import costs, offload_nodes, random_state
from aotgrad.partition.compact import dense_copy
from aotgrad.partition.decision import Decision
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.slots import Saved, SavedSymInt


@dataclass(frozen=True)
class Crossing:
    """One value that the halves exchange: a value of the joint graph, a copy of it, also one on the host, its size along a
    dimension, or the state that a random op drew from.

    `slot` names it in both signatures.
    """

    node: fx.Node
    slot: Saved | SavedSymInt
    is_slice: bool = False
    is_state: bool = False
    is_offloaded: bool = False
    dim: int | None = None

    @property
    def value(self) -> Any:
        """The traced value that crosses."""
        if self.is_state:
            return fake_random_state(self.node)
        if self.dim is not None:
            return self.node.meta["val"].shape[self.dim]
        if self.is_offloaded:
            return offload_nodes.on_host(self.node)
        return dense_copy(self.node.meta["val"]) if self.is_slice else self.node.meta.get("val")


def crossing_of(analysis: JointAnalysis, node: fx.Node, decision: Decision) -> Crossing:
    if op_table.is_symbolic_value(node):
        return Crossing(node, SavedSymInt(node.name))
    if op_table.is_tuple_value(node):
        raise PartitionError(f"the backward reads {node.name}, a tuple, as a whole; only its items can be saved")
    if node in decision.offloaded:
        return Crossing(node, Saved(unused_name(analysis, f"{node.name}_host")), is_offloaded=True)
    is_slice = node in (decision.compact or ())
    is_copy = is_slice or node in analysis.copied
    return Crossing(node, Saved(unused_name(analysis, f"{node.name}_copy") if is_copy else node.name), is_slice)


def unused_name(analysis: JointAnalysis, stem: str) -> str:
    taken = {other.name for other in analysis.nodes}
    return next(name for suffix in itertools.count() if (name := f"{stem}{suffix or ''}") not in taken)


def described(analysis: JointAnalysis, value: Crossing, reason: str | None) -> SavedValue:
    if value.is_state:
        why = f"needed to recompute {value.node.name} in the backward; the state that it drew from"
        return SavedValue(value.slot, random_state.state_bytes(value.node), why, user_line(value.node))
    if value.dim is not None:
        return SavedValue(value.slot, 0, "a size of the backward's inputs", user_line(value.node))
    assert reason is not None, "every saved value has a reason"
    held = costs.dense_bytes(value.value) if value.is_slice else costs.held_bytes(analysis, value.node)
    if value.is_offloaded:
        return SavedValue(value.slot, 0, reason, user_line(value.node), host_bytes=held)
    return SavedValue(value.slot, held, reason, user_line(value.node))


def user_line(node: fx.Node) -> str | None:
    """The user's line that a node comes from."""
    return source_line(node.meta.get("stack_trace"))


def sizes_to_bind(analysis: JointAnalysis, saved: Iterable[fx.Node]) -> dict[fx.Node, str]:
    """Numbers to save for the symbols in the shapes of the backward's inputs: backends need them as inputs."""
    bindings: dict[object, fx.Node] = {}
    for node in analysis.in_order(analysis.forward):
        symbol = bound_symbol(node.meta.get("val"))
        if symbol is not None:
            bindings.setdefault(symbol, node)
    saved = list(saved)
    bound = {bound_symbol(node.meta.get("val")) for node in saved}
    sizes: dict[fx.Node, str] = {}
    for node in (*saved, *analysis.tangents) if bindings else ():
        for symbol in symbols_of(node.meta.get("val")):
            if symbol in bindings and symbol not in bound:
                bound.add(symbol)
                sizes[bindings[symbol]] = f"a size of {node.name} in the backward"
    return sizes


def sizes_to_read(analysis: JointAnalysis, saved: Iterable[fx.Node]) -> list[Crossing]:
    """Sizes of primals to save for symbols in the shapes of the backward's inputs that no node of the graph computes."""
    inputs = [*saved, *analysis.tangents]
    bound = {bound_symbol(node.meta.get("val")) for node in inputs}
    missing = {symbol for node in inputs for symbol in symbols_of(node.meta.get("val"))} - bound
    found: dict[object, Crossing] = {}
    for primal in analysis.primals if missing else ():
        value = primal.meta.get("val")
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if (symbol := bound_symbol(size)) in missing:
                found.setdefault(symbol, Crossing(primal, SavedSymInt(f"size_{dim}_of_{primal.name}"), dim=dim))
    return list(found.values())
