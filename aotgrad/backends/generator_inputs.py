"""Generators as inputs of halves, so that a CUDA graph may contain random ops whose draws the backward repeats.

In: a half with states of generators among its results or inputs. Out: a half without, and what runs around it.

    forward    x -> state, mask = draw_and_record(bernoulli, x)     x, clone -> mask = draw_and_note(bernoulli, x, clone)
    backward   state, x -> mask = draw_again(state, bernoulli, x)   x, clone -> mask = draw_from_clone(bernoulli, x, clone)

A captured graph may draw, but reads and sets no state; its replays advance the generators by what was drawn. Around it,
each call of the forward makes the states: that before the call, advanced by how much the graph draws before the op. The
first call, which is not captured, notes these distances. They are equal in all calls, since no size is symbolic. Each call
of the backward gives its clones the states that its forward saved. Only numbers on the host are read and set.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.errors import BackendError
from aotgrad.graph import op_table
from aotgrad.graph.copies import copy_graph
from aotgrad.graph.ends import output_node, outputs_of
from aotgrad.graph.lazy_module import LazyGraphModule
from aotgrad.ir import GraphHalf
from aotgrad.slots import GeneratorClone, SlotSignature

Clones = Mapping[int, torch.Generator]
"""Clones of default generators, by the positions of the states that they replace among the results or inputs of a half."""


@dataclass
class ForwardWithClones:
    """Runs a compiled forward on its clones, and puts the states that its random ops drew from among its results."""

    run: Callable[[list[Any]], Any]
    clones: Clones
    distances: Mapping[int, int] = field(default_factory=dict)
    _boxed_call: bool = True

    def __call__(self, inputs: list[Any]) -> list[Any]:
        before = {clone.device: torch_compat.state_before_draws(clone.device) for clone in self.clones.values()}
        if not self.distances:
            self.forget(before)
        inputs.extend(self.clones.values())
        results = list(self.run(inputs))
        if not self.distances:
            self.distances = self.noted(before)
        for position, clone in self.clones.items():
            results[position] = advanced(before[clone.device], self.distances[position])
        return results

    def forget(self, before: Mapping[torch.device, torch.Tensor]) -> None:
        """Give the clones other seeds than the generators have."""
        for clone in self.clones.values():
            other = before[clone.device].clone()
            other[0] ^= 1
            clone.set_state(other)

    def noted(self, before: Mapping[torch.device, torch.Tensor]) -> dict[int, int]:
        """How far each clone is from the state before the call.

        Raises:
            BackendError: a clone has noted nothing, since the first call was captured.
        """
        found: dict[int, int] = {}
        for position, clone in self.clones.items():
            seed, offset = seed_and_offset(clone.get_state())
            first_seed, first_offset = seed_and_offset(before[clone.device])
            if seed != first_seed:
                raise BackendError(
                    "the first call was captured as a CUDA graph, so that it is unknown where a random op draws; compile "
                    "without Inductor's triton.skip_cudagraph_warmup"
                )
            found[position] = offset - first_offset
        return found


@dataclass(frozen=True)
class BackwardWithClones:
    """Runs a compiled backward on its clones, which get the states that the forward saved."""

    run: Callable[[list[Any]], Any]
    clones: Clones
    _boxed_call: bool = True

    def __call__(self, inputs: list[Any]) -> Any:
        for position, clone in self.clones.items():
            clone.set_state(inputs[position])
        inputs[:] = [value for position, value in enumerate(inputs) if position not in self.clones]
        inputs.extend(self.clones.values())
        with torch_compat.kept_generators({clone.device for clone in self.clones.values()}):  # also if an op raises
            return self.run(inputs)


def seed_and_offset(state: torch.Tensor) -> list[int]:
    """The seed and the offset of a state."""
    return state.view(torch.int64).tolist()


def advanced(state: torch.Tensor, distance: int) -> torch.Tensor:
    copy = state.clone()
    copy.view(torch.int64)[1] += distance
    return copy


# --- The graphs ------------------------------------------------------------------------------------------------------


def forward_with_clones(half: GraphHalf) -> tuple[GraphHalf, Clones]:
    """A copy of a forward whose recorded states of GPUs are `None` among its results; clones are its last inputs."""
    graph, signature = copy_graph(half.module.graph), half.signature
    results, output = outputs_of(graph), output_node(graph)
    draws = {k: node.args[0] for k, node in enumerate(results) if is_recorded_state(node)}
    clones = add_clones(graph, "fwd_rng_state", draws)
    output.args = (tuple(None if k in draws else node for k, node in enumerate(results)),)
    for position, draw in draws.items():
        drawn = call_instead(draw, torch_compat.draw_and_note, draw.args, clones[position])
        for item in list(draw.users):
            item.replace_all_uses_with(drawn)  # the state has no uses left
            graph.erase_node(item)
        drawn.meta = {**draw.meta, "val": draw.meta["val"][1]}
        graph.erase_node(draw)
    added = clone_slots([signature.outputs[position] for position in draws])
    signature = SlotSignature((*signature.inputs, *added), signature.outputs)
    return GraphHalf(LazyGraphModule(half.module, graph), signature), generators_of_clones(clones)


def is_recorded_state(node: Any) -> bool:
    """Whether a result is a recorded state of a GPU's generator that nothing in the graph reads."""
    if not isinstance(node, fx.Node) or node.target is not operator.getitem or len(node.users) > 1:
        return False
    draw, item = cast(Any, node.args)
    return draw.target is torch_compat.draw_and_record and item == 0 and op_table.drawing_device(draw).type == "cuda"


def backward_with_clones(half: GraphHalf) -> tuple[GraphHalf, Clones]:
    """A backward that takes clones, as its last inputs, in place of states of GPUs. The half is changed in place."""
    graph, inputs = half.module.graph, half.signature.inputs
    users = {k: list(node.users) for k, node in enumerate(graph.find_nodes(op="placeholder"))}
    draws = {k: found[0] for k, found in users.items() if len(found) == 1 and draws_again_on_gpu(found[0])}
    clones = add_clones(graph, "bwd_rng_state", draws)
    for position, draw in draws.items():
        state, *args = draw.args
        drawn = call_instead(draw, torch_compat.draw_from_clone, args, clones[position])
        draw.replace_all_uses_with(drawn)
        graph.erase_node(draw)
        graph.erase_node(state)
    kept = [slot for position, slot in enumerate(inputs) if position not in draws]
    added = clone_slots([inputs[position] for position in draws])
    signature = SlotSignature((*kept, *added), half.signature.outputs)
    return GraphHalf(LazyGraphModule(half.module, graph), signature), generators_of_clones(clones)


def draws_again_on_gpu(node: fx.Node) -> bool:
    return node.target is torch_compat.draw_again and op_table.drawing_device(node).type == "cuda"


def add_clones(graph: fx.Graph, name: str, draws: Mapping[int, fx.Node]) -> dict[int, fx.Node]:
    """Placeholders of clones after all others, by the positions of states. Inductor knows them by these names."""
    with graph.inserting_before(next(node for node in graph.nodes if node.op != "placeholder")):
        clones = {position: graph.placeholder(f"{name}_{k}") for k, position in enumerate(draws)}
    for position, clone in clones.items():
        clone.meta = {"val": torch_compat.clone_generator(op_table.drawing_device(draws[position]))}
    return clones


def call_instead(draw: fx.Node, target: Any, args: Sequence[Any], clone: fx.Node) -> fx.Node:
    """A call before `draw` with its arguments and a clone."""
    with draw.graph.inserting_before(draw):
        call = draw.graph.call_function(target, tuple(args), {**draw.kwargs, "rng_state": clone})
    call.meta = dict(draw.meta)
    return call


def clone_slots(states: Sequence[Any]) -> list[GeneratorClone]:
    return [GeneratorClone(state.name) for state in states]


def generators_of_clones(clones: Mapping[int, fx.Node]) -> Clones:
    return {position: clone.meta["val"].clone_state() for position, clone in clones.items()}
