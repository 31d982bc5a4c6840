"""What eager's autograd nodes save, and which of them a backward passes through.

In: a `Segmentation` and the live nodes. Out: the `SavingNodes` of each segment, and the owners of saved memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.ir import BackwardSegment, Capture, SavingNodes
from aotgrad.joint.segments import Edge, Segmentation, edges_of, topological_order
from aotgrad.slots import ForwardResult, Gradient, GradientTarget, Primal, Tangent, UserOutput


def saving_nodes(
    segmentation: Segmentation,
    segments: Sequence[BackwardSegment],
    edges: Mapping[Tangent, Edge],
    saved: Mapping[Any, Collection[int]],
    memory: Mapping[int, Collection[Primal | ForwardResult]],
) -> list[tuple[SavingNodes, ...]]:
    """For each segment, its nodes that save a value; see `BackwardSegment.saving`.

    Args:
        edges: where each tangent enters.
        saved: the storages of what each node saves.
        memory: the places of memory that may change without the version counter of a saved tensor, by storage.
    """
    segment_of, failures = segmentation.segment_of, segmentation.failures
    tangents, gradients = masks_of_nodes(segmentation, segments, edges)
    found: dict[tuple[int, int, int], set[Primal | ForwardResult]] = {}
    for node in (node for node in tangents if node not in failures):
        if saved[node] or torch_compat.saves_a_value(node):
            values = found.setdefault((segment_of[node], tangents[node], gradients[node]), set())
            values.update(*(memory[storage] for storage in memory.keys() & saved[node]))
    groups: list[list[SavingNodes]] = [[] for _ in segments]
    for node, failure in failures.items():
        groups[segment_of[node]].append(SavingNodes(tangents[node], gradients[node], error=failure.message))
    for (number, *masks), values in sorted(found.items(), key=lambda item: item[0]):
        groups[number].append(SavingNodes(*masks, memory=frozenset(values)))
    return list(map(tuple, groups))


def masks_of_nodes(
    segmentation: Segmentation, segments: Sequence[BackwardSegment], edges: Mapping[Tangent, Edge]
) -> tuple[dict[Any, int], dict[Any, int]]:
    """For each node, the tangents of its segment that lead to it, and the gradients that it leads to, as bit masks."""
    segment_of, failures = segmentation.segment_of, segmentation.failures
    onward = {node: () if node in failures else edges_of(node) for node in segment_of}
    inside = {node: [n for n, *_ in onward[node] if segment_of.get(n) == segment_of[node]] for node in segment_of}
    order = topological_order(segment_of, inside.__getitem__, segment_of.__getitem__)
    tangents, gradients = dict.fromkeys(order, 0), dict.fromkeys(order, 0)
    for segment in segments:
        for k, tangent in enumerate(segment.tangents):
            tangents[edges[tangent][0]] |= 1 << k
    for node in order:
        for successor in inside[node]:
            tangents[successor] |= tangents[node]
    bits = [bits_of_targets(segment.gradients) for segment in segments]
    for node in reversed(order):
        left = (edge for edge in onward[node] if segmentation.leaves(segment_of[node], edge))
        targets = failures[node].targets if node in failures else {segmentation.targets.get(edge) for edge in left}
        gradients[node] = sum(bits[segment_of[node]].get(target, 0) for target in targets)
        for successor in inside[node]:
            gradients[node] |= gradients[successor]
    return tangents, gradients


def storages_by_node(segmentation: Segmentation, memory: Collection[int]) -> dict[Any, dict[int, int | None]]:
    """The storages of what each node that does not fail saves, with their bytes; see `saved_storages`."""
    nodes = (node for node in segmentation.segment_of if node not in segmentation.failures)
    return {node: saved_storages(node, memory) for node in nodes}


def saved_storages(node: Any, memory: Collection[int]) -> dict[int, int | None]:
    """The storages of the tensors that a node saved, with their bytes; for a custom function only those in `memory`."""
    if not torch_compat.is_custom_node(node):
        return bytes_by_memory(torch_compat.saved_tensors(node))
    found = bytes_by_memory(filter(torch_compat.has_storage, torch_compat.saved_by_function(node) if memory else ()))
    return {storage: found[storage] for storage in found.keys() & memory}


def bytes_by_memory(tensors: Iterable[torch.Tensor]) -> dict[int, int | None]:
    return {torch_compat.traced_memory_id(tensor): bytes_of_storage(tensor) for tensor in tensors}


def bytes_of_storage(tensor: torch.Tensor) -> int | None:
    """The bytes of a traced tensor's storage, by the traced values of its sizes; `None` if one depends on data.

    A wrapper subclass has no storage of its own, but those of its parts: `None`.
    """
    if torch_compat.is_wrapper_subclass(tensor):
        return None
    size = tensor.untyped_storage().nbytes()
    return size if isinstance(size, int) else getattr(size.node, "hint", None)


def bytes_without_owner(saved: Mapping[Any, Mapping[int, int | None]], owners: Collection[int]) -> int | None:
    """The bytes that eager saves outside of the memory of inputs and results; `None` if they are unknown.

    Args:
        saved: the storages of what each node saves, with their bytes.
        owners: the storages of inputs and results.
    """
    if any(map(torch_compat.hides_saved_tensors, saved)):
        return None
    storages = {storage: size for each in saved.values() for storage, size in each.items() if storage not in owners}
    sizes = [size for size in storages.values() if size is not None]
    return sum(sizes) if len(sizes) == len(storages) else None


def bits_of_targets(gradients: Sequence[Gradient]) -> dict[GradientTarget | None, int]:
    """The positions of the gradients of each target, as bits."""
    bits: dict[GradientTarget | None, int] = {}
    for k, gradient in enumerate(gradients):
        bits[gradient.of] = bits.get(gradient.of, 0) | 1 << k
    return bits


def owners_of_memory(capture: Capture, results: Mapping[ForwardResult, Any]) -> dict[int, Primal | ForwardResult]:
    """The inputs and results by their memory. An input that is returned counts as an input."""
    live: list[tuple[Any, Any]] = [(UserOutput(k), output) for k, output in enumerate(capture.outputs)]
    live += ((Primal(k), value) for k, value in enumerate(capture.primals))
    live += results.items()
    return {torch_compat.traced_memory_id(value): slot for slot, value in live if torch_compat.has_storage(value)}


def assigned_memory(capture: Capture) -> dict[int, Primal]:
    """The inputs that are given other memory, by that memory."""
    return {torch_compat.traced_memory_id(capture.arguments[k]): Primal(k) for k in capture.assigned}
