"""The views that are made outside of the graph, with the edges at which their gradients enter the backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aotgrad import torch_compat
from aotgrad.ir import Capture, MemberInput, MutationType, ViewAndMutationMeta
from aotgrad.joint.segments import Edge
from aotgrad.slots import ForwardResult, OldInput, ReturnedView, UpdatedInput


@dataclass(frozen=True)
class View:
    """A view that is made outside of the graph: the edge of its gradient, and the results that it is made from."""

    slot: ReturnedView | UpdatedInput | OldInput
    edge: Edge
    bases: tuple[ForwardResult, ...]


def views_outside(capture: Capture, meta: ViewAndMutationMeta) -> Iterator[View]:
    """Returned views, and inputs that become views of their old values: of another size, or of written memory."""
    yield from new_leaf_views(capture, meta)
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
