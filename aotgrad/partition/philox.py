"""Random ops as functions of a seed and an offset, for backends that want halves without hidden state.

In: a `Partition`. Out: the same, whose forward takes the seed and the offset of each device on which it draws.

    forward    x, seed, offset -> mask, next = philox_draw(seed, offset, bernoulli, x, 0.5) -> (..., offset, seed, next)
    backward   x, offset, seed -> mask, _ = philox_draw(seed, offset, bernoulli, x, 0.5)

A recomputed random op starts from the seed and the offset of the forward; they take the place of a recorded state. A draw
consumes as much of the offset as in eager, so that each number and the generator after the call are eager's.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.errors import PartitionError
from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_graph
from aotgrad.graph.ends import output_node
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.ir import GraphHalf, Partition, SavedValue
from aotgrad.partition import costs
from aotgrad.partition.crossing import user_line
from aotgrad.slots import NextOffset, RandomOffset, RandomSeed, Saved, SlotSignature

NUMBER_BYTES = 8
"""The size of a seed or an offset."""


def functionalize_rng(partition: Partition) -> Partition:
    """`partition` without ops that read or move a generator.

    Raises:
        PartitionError: an op draws on a CPU, in a backward, or in a subgraph; the message names op and line.
    """
    forward, backward = partition.forward, partition.backward
    _check_draws(forward, backward)
    if not any(map(op_table.draws, forward.module.graph.nodes)):
        return partition
    if backward is None:
        return replace(partition, forward=_functional_forward(forward, ()))
    again: list[Any] = backward.module.graph.find_nodes(op="call_function", target=torch_compat.draw_again)
    states = {Saved(node.args[0].name) for node in again}
    saved = [replace(value, saved_bytes=NUMBER_BYTES) if value.slot in states else value for value in partition.saved]
    seeds = sorted(set(map(_drawn_on, again)))
    values = [SavedValue(_seed_slot(device), NUMBER_BYTES, "the seed of recomputed random ops", None) for device in seeds]
    saved = _after_saved(saved, [value.slot for value in saved], values)
    functional = _functional_forward(forward, seeds), _functional_backward(backward, seeds)
    return Partition(*functional, tuple(saved), partition.recomputed)


def _check_draws(forward: GraphHalf, backward: GraphHalf | None) -> None:
    halves = [half for half in (forward, backward) if half is not None]
    for node in (node for half in halves for node in _drawing_in_subgraphs(half)):
        _reject_draw(node, "draws in the subgraph of a higher-order op")
    for node in backward.module.graph.nodes if backward is not None else ():
        if op_table.draws(node):
            _reject_draw(node, "draws in the backward, whose graph takes no generator")


def _drawing_in_subgraphs(half: GraphHalf) -> Iterator[fx.Node]:
    for module in half.module.modules():
        if isinstance(module, fx.GraphModule) and module is not half.module:
            yield from filter(op_table.draws, module.graph.nodes)


def _reject_draw(node: fx.Node, why: str) -> NoReturn:
    """Raises PartitionError."""
    op: Any = node.args[0] if node.target in (torch_compat.draw_and_record, torch_compat.draw_again) else node.target
    line = user_line(node)
    where = f" ({line})" if line else ""
    raise PartitionError(f"{op}{where} {why}: it has no functional form; compile without functionalize_rng")


def _drawn_on(node: fx.Node) -> str:
    device = op_table.drawing_device(node)
    if device.type != "cuda":
        _reject_draw(node, f"draws on the {device.type.upper()}, whose generator has no seed and offset")
    return str(device)


# --- The two graphs --------------------------------------------------------------------------------------------------


def _functional_forward(half: GraphHalf, saved_seeds: Sequence[str]) -> GraphHalf:
    """A copy of the forward half, which is the joint graph itself if there is no backward. It saves some devices' seeds."""
    graph, slots = copy_graph(half.module.graph), half.signature
    output = output_node(graph)
    drawing = [node for node in graph.nodes if op_table.draws(node)]
    devices = sorted(set(map(_drawn_on, drawing)))
    added = [slot(device) for device in devices for slot in (RandomSeed, RandomOffset)]
    given = _add_inputs(graph, len(slots.inputs), list(map(_placeholder_name, added)), drawing[0])
    seeds, offsets = dict(zip(devices, given[::2], strict=True)), dict(zip(devices, given[1::2], strict=True))
    for node in drawing:
        offsets[_drawn_on(node)] = _functional_draw(node, seeds[_drawn_on(node)], offsets[_drawn_on(node)])
    _functional_redraw(graph, seeds)
    values = _after_saved(cast(Any, output.args[0]), slots.outputs, [seeds[device] for device in saved_seeds])
    output.args = ((*values, *offsets.values()),)
    outputs = _after_saved(slots.outputs, slots.outputs, list(map(_seed_slot, saved_seeds)))
    signature = SlotSignature((*slots.inputs, *added), (*outputs, *map(NextOffset, devices)))
    return GraphHalf(LazyGraphModule(half.module, graph), signature)


def _functional_backward(half: GraphHalf, seeds: Sequence[str]) -> GraphHalf:
    """The backward half, which takes the saved seeds of some devices."""
    if not seeds:
        return half
    graph, inputs = half.module.graph, half.signature.inputs
    again = graph.find_nodes(op="call_function", target=torch_compat.draw_again)
    slots = list(map(_seed_slot, seeds))
    given = _add_inputs(graph, _end_of_saved(inputs), [slot.name for slot in slots], again[0])
    _functional_redraw(graph, dict(zip(seeds, given, strict=True)))
    signature = SlotSignature(tuple(_after_saved(inputs, inputs, slots)), half.signature.outputs)
    return GraphHalf(LazyGraphModule(half.module, graph), signature)


def _placeholder_name(slot: RandomSeed | RandomOffset) -> str:
    return str(slot).replace(" of ", "_").replace(" ", "_").replace(":", "_")


def _seed_slot(device: str) -> Saved:
    return Saved(_placeholder_name(RandomSeed(device)))


def _end_of_saved(slots: Sequence[Any]) -> int:
    """The position after the last saved tensor."""
    return max((k + 1 for k, slot in enumerate(slots) if isinstance(slot, Saved)), default=len(slots))


def _after_saved(items: Sequence[Any], slots: Sequence[Any], added: Sequence[Any]) -> list[Any]:
    """`items`, which have the meanings `slots`, with more after the saved tensors."""
    end = _end_of_saved(slots)
    return [*items[:end], *added, *items[end:]]


def _add_inputs(graph: fx.Graph, position: int, names: Sequence[str], like: fx.Node) -> list[fx.Node]:
    """More placeholders of numbers, from `position` on."""
    with graph.inserting_before(list(graph.nodes)[position]):
        added = [graph.placeholder(name) for name in names]
    for node in added:
        node.meta = {"val": _fake_number(like), "partitioner_tag": node.next.meta.get("partitioner_tag", "is_forward")}
    return added


def _functional_draw(node: fx.Node, seed: fx.Node, offset: fx.Node) -> fx.Node:
    """Replace an op that draws from a generator; returns the next offset."""
    is_recorded = node.target is torch_compat.draw_and_record
    args = node.args if is_recorded else (node.target, *node.args)
    value = node.meta["val"][1] if is_recorded else node.meta["val"]
    drawn, after = _philox(node, (seed, offset, *args), value)
    for item in list(node.users) if is_recorded else ():
        item.replace_all_uses_with(drawn if item.args[1] else offset)
        node.graph.erase_node(item)
    node.replace_all_uses_with(drawn)
    node.graph.erase_node(node)
    return after


def _functional_redraw(graph: fx.Graph, seeds: Mapping[str, fx.Node]) -> None:
    """Replace the ops that draw again from a recorded state, which becomes an offset."""
    for node in graph.find_nodes(op="call_function", target=torch_compat.draw_again):
        offset, *args = cast(Any, node.args)
        offset.meta["val"] = _fake_number(node)
        drawn, _ = _philox(node, (seeds[_drawn_on(node)], offset, *args), node.meta["val"])
        node.replace_all_uses_with(drawn)
        graph.erase_node(node)


def _philox(node: fx.Node, args: tuple, value: Any) -> tuple[fx.Node, fx.Node]:
    """`philox_draw` before `node`: what it draws, and the next offset."""
    number = _fake_number(node)
    with node.graph.inserting_before(node):
        both = node.graph.call_function(torch_compat.philox_draw, args, dict(node.kwargs))
        drawn = node.graph.call_function(operator.getitem, (both, 0))
        after = node.graph.call_function(operator.getitem, (both, 1))
    both.meta = {**node.meta, "val": (value, number)}
    drawn.meta = {**node.meta, "val": value}
    after.meta = {"val": number}
    return drawn, after


def _fake_number(like: fx.Node) -> torch.Tensor:
    """A fake int64 number on the CPU, of the trace of a random op."""
    (tensor, *_) = costs.tensors_of(like)
    with getattr(tensor, "fake_mode", contextlib.nullcontext()):
        return torch.empty((), dtype=torch.int64, device="cpu")
