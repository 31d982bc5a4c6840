"""The views that are made outside of the graph, with the edges at which their gradients enter the backward.

A wrapper subclass among the results is assembled outside of the graph, and counts as a view of its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.graph.autograd_nodes import autograd_nodes
from aotgrad.ir import (
    GRAPH_OUTPUTS,
    Capture,
    ConstantOutput,
    IsInput,
    MemberInput,
    MutationType,
    SymOutput,
    ViewAndMutationMeta,
)
from aotgrad.joint.segments import Edge
from aotgrad.slots import ForwardResult, OldInput, ReturnedView, ReturnedWrapper, UpdatedInput, UserOutput
from aotgrad.subclasses.passages import TracedView, assembles_argument, takes_result_apart


@dataclass(frozen=True)
class View:
    """A view that is made outside of the graph: the edge of its gradient, and the results that it is made from.

    `taker` is the node that takes a wrapper subclass apart, see `ExternalView`.
    """

    slot: ReturnedView | ReturnedWrapper | UpdatedInput | OldInput
    edge: Edge
    bases: tuple[ForwardResult, ...]
    taker: Any = None


def views_outside(capture: Capture, meta: ViewAndMutationMeta) -> Iterator[View]:
    """Returned views, and inputs that become views of their old values: of another size, or of written memory."""
    yield from new_leaf_views(capture, meta)
    yield from passed_wrappers(capture, meta)
    for index in meta.replayed_views():
        live, inside, base = capture.outputs[index], meta.input_behind(index), meta.result_behind(index)
        bases = () if base is None else (base,)
        if live.grad_fn is not None:
            edge = torch_compat.gradient_edge(live)
            yield View(ReturnedView(index), edge, bases if inside is None else _updated(capture, inside))
    for index, info in enumerate(meta.inputs):
        spec, live = capture.inputs[index], capture.arguments[index]
        if info is None or live.grad_fn is None:
            continue
        if isinstance(spec, MemberInput) and spec.attached:
            yield from _views_of_member(capture, index)
        elif info.mutation is MutationType.METADATA_ONLY and not info.hidden_from_autograd:
            yield View(UpdatedInput(index), torch_compat.gradient_edge(live), ())


def new_leaf_views(capture: Capture, meta: ViewAndMutationMeta) -> Iterator[View]:
    """The outputs at which gradients end. One object that is returned twice is one leaf."""
    leaves = {id(capture.outputs[index]): index for index in sorted(meta.new_leaves, reverse=True)}
    for index in sorted(leaves.values()):
        yield View(ReturnedView(index), torch_compat.gradient_edge(capture.outputs[index]), ())


def passed_wrappers(capture: Capture, meta: ViewAndMutationMeta) -> Iterator[View]:
    """The wrapper subclasses among the results that other results were computed from."""
    results = [output for output in capture.outputs if isinstance(output, torch.Tensor) and output.requires_grad]
    takers: dict[Any, None] = {output.grad_fn: None for output in results if takes_result_apart(output.grad_fn)}
    views = {k: output for k, output in enumerate(capture.outputs) if isinstance(output, TracedView)}
    others = (node for node in (autograd_nodes(results) if takers or views else ()) if node not in takers)
    entered = {edge for node in others for edge in node.next_functions}
    slots_of = {taker: flat_outputs_of(taker, capture) for taker in takers}
    known = {taker: slots for taker, slots in slots_of.items() if are_known_at_once(slots, meta)}
    for taker, slots in known.items():
        if taker.next_functions[0] in entered:
            yield View(ReturnedWrapper(slots[0].index), taker.next_functions[0], tuple(slots), taker)
    for k, view in views.items():
        bases = [taker for taker in takers if taker.next_functions[0] == view.base_edge]
        values = [UserOutput(k + 1 + n) for n in range(view.count)]
        is_known = known.keys() >= set(bases) if bases else assembles_argument(view.base_edge[0])
        if view.edge in entered and is_known and are_known_at_once(values, meta):
            slots = [slot for taker in bases for slot in known[taker]]
            view.base = (ReturnedWrapper(slots[0].index), bases[0].end.in_calls) if bases else None
            yield View(ReturnedWrapper(k), view.edge, tuple(slots), view)


def are_known_at_once(slots: Iterable[UserOutput], meta: ViewAndMutationMeta) -> bool:
    """Whether outputs are known before an autograd node is made."""
    return all(isinstance(meta.outputs[slot.index], RETURNED_AT_ONCE) for slot in slots)


def flat_outputs_of(taker: Any, capture: Capture) -> list[UserOutput]:
    """The outputs that a result is taken apart to: parts, carriers and numbers."""
    edges = ((k, output) for k, output in enumerate(capture.outputs) if isinstance(output, torch.Tensor))
    first = next(k - output.output_nr for k, output in edges if output.grad_fn is taker)
    return [UserOutput(first + k) for k in range(taker.end.flat_count)]


RETURNED_AT_ONCE = (*GRAPH_OUTPUTS, SymOutput, ConstantOutput, IsInput)


def _updated(capture: Capture, index: int) -> tuple[UpdatedInput, ...]:
    """The results that a written input is made from: the new values of all inputs in its memory."""
    return tuple(map(UpdatedInput, capture.sharing(index)))


def _views_of_member(capture: Capture, index: int) -> Iterator[View]:
    """The two histories of an input that shares memory: before the first write to the memory, and after the last."""
    before = capture.before[index]
    assert before is not None, "it is a tensor"
    edge, old = torch_compat.gradient_edge(capture.arguments[index]), before.history
    yield View(UpdatedInput(index), edge, _updated(capture, index))
    if old is not edge[0]:
        yield View(OldInput(index), (old, 0), ())
