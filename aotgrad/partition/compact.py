"""Saves copies of slices instead of the whole tensor, where the backward reads only the slices.

In: a `Decision`. Out: a `Decision` that saves less.

    h = x @ w; y = h[:, :8].sin()      the backward reads cos(h[:, :8])
    saved: h[:, :8], copied, and not h

A view keeps the whole storage alive. If the slices that the backward reads are less than `SHARE` of it, the forward copies
them, which frees the rest.

Limits: not for inputs and outputs, which the caller holds anyway, not for offloaded values, and not with symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.fx as fx

from aotgrad.graph import op_table
from aotgrad.partition import costs
from aotgrad.partition.decision import Decision
from aotgrad.partition.graphs import JointAnalysis
from aotgrad.torch_compat import FakeTensor

SHARE = 0.75  # of a storage: a copy that frees less than a quarter of it is not worth its traffic

ArgumentRead = tuple[fx.Node, fx.Node]
"""(an op that runs in the backward, its argument)"""


def compacted(analysis: JointAnalysis, decision: Decision, runs: Collection[fx.Node]) -> Decision:
    """Save copies of slices where they are smaller. `runs` are the nodes that run in the backward."""
    reads = _reads_by_base(analysis, decision, runs)
    saved, compact = {}, set()
    for node, reason in decision.saved.items():
        slices = _slices(analysis, node, reads.get(node, []))
        compact |= slices
        note = f"; only slices of {node.name} are needed, which a copy holds without it"
        saved |= dict.fromkeys(analysis.in_order(slices), reason + note) if slices else {node: reason}
    return replace(decision, saved=saved, compact=frozenset(compact))


def retrace(node: fx.Node, given: Mapping[Any, Any] | None = None) -> Any:
    """The traced value of a node after its arguments got other strides, or the values in `given`."""
    replaced = given or {}
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: replaced.get(arg, arg.meta["val"]))
    op: Any = node.target
    with _fake_mode(node.meta["val"]):
        return op(*args, **kwargs)


def dense_copy(value: torch.Tensor) -> torch.Tensor:
    """The traced value of a dense copy."""
    with _fake_mode(value):
        return value.clone()


def _reads_by_base(
    analysis: JointAnalysis, decision: Decision, runs: Collection[fx.Node]
) -> dict[fx.Node, list[ArgumentRead]]:
    candidates = {node for node in decision.saved if node not in decision.offloaded and _may_be_cut(analysis, node)}
    reads: dict[fx.Node, list[ArgumentRead]] = {node: [] for node in candidates}
    for reader in analysis.in_order(runs):
        for arg in reader.all_input_nodes if not analysis.is_view(reader) else ():
            if analysis.base[arg] in candidates:
                reads[analysis.base[arg]].append((reader, arg))
    returned = {analysis.base[value] for value in analysis.gradients if isinstance(value, fx.Node)}
    return {node: found for node, found in reads.items() if node not in returned}


def _may_be_cut(analysis: JointAnalysis, node: fx.Node) -> bool:
    value = node.meta.get("val")
    owned = node in analysis.forward and node.op == "call_function" and node not in analysis.held | analysis.copied
    return owned and isinstance(value, torch.Tensor) and _is_static(value)


def _is_static(value: torch.Tensor) -> bool:
    plain = value.layout is torch.strided
    return plain and all(isinstance(number, int) for number in (*value.shape, *value.stride()))


def _slices(analysis: JointAnalysis, base: fx.Node, reads: list[ArgumentRead]) -> set[fx.Node]:
    """The views of `base` to copy; none if they are not smaller or would give other results than `base`."""
    slices = {_slice_of(base, arg) for _, arg in reads}
    if not slices or None in slices:
        return set()
    found = {node for node in slices if node is not None}
    held = sum(costs.dense_bytes(node.meta["val"]) for node in found)
    small = held < SHARE * costs.extent_bytes(base.meta["val"])
    return found if small and all(_gives_the_same(base, *read) for read in reads) else set()


def _slice_of(base: fx.Node, view: fx.Node) -> fx.Node | None:
    """The smallest view on the chain from `base` to `view`; `None` if none of them is a dense part."""
    parts = [node for node in chain(base, view) if _is_copyable(node)]
    if not parts or any(op_table.op_name(node.target) == "aten.as_strided" for node in chain(base, view)):
        return None
    return min(parts, key=lambda node: costs.dense_bytes(node.meta["val"]))


def chain(base: fx.Node, view: fx.Node) -> Iterator[fx.Node]:
    """The chain of views from `view` back to `base`, without `base`."""
    while view is not base:
        yield view
        view = view.args[0]  # type: ignore[assignment]


def _is_copyable(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not _is_static(value):
        return False
    return all(stride or size == 1 for size, stride in zip(value.shape, value.stride(), strict=True))


def _gives_the_same(base: fx.Node, reader: fx.Node, arg: fx.Node) -> bool:
    """Whether the reader's result keeps its strides if the slice is dense."""
    part = _slice_of(base, arg)
    assert part is not None, "asked for slices only"
    value = dense_copy(part.meta["val"])
    try:
        at = part
        for view in reversed(list(chain(part, arg))):
            at, value = view, retrace(view, {at: value})
        result = retrace(reader, {at: value})
    except RuntimeError:  # the dense tensor does not allow this view
        return False
    return _layouts(result) == _layouts(reader.meta["val"])


def _layouts(value: Any) -> list[tuple[Any, ...]]:
    values = op_table.items_of(value)
    return [(tuple(v.shape), tuple(v.stride())) if isinstance(v, torch.Tensor) else (v,) for v in values]


def _fake_mode(value: Any) -> Any:
    return next(v.fake_mode for v in op_table.items_of(value) if isinstance(v, FakeTensor))
