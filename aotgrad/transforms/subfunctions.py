"""Splits a function whose results have several autograd nodes into subfunctions, one for each node.

    def f(x): h = x.exp(); return h, h.sin()        SubFunction(results=(0,), given=()): h, of x
                                                    SubFunction(results=(1,), given=(0,)): h.sin(), of x and h

Inside transforms of `torch.func`, a compiled function is one autograd node (`transforms/functorch.py`). The gradient of the
sine must pass through `h`, whose gradient a program may read or replace by a hook: there are two nodes, of two functions.

In: the segments of a function's backward. Out: its subfunctions. To compute one, the function runs from its start, and each
given result replaces what the call that made it returns: a `CallResult`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode

from aotgrad.ir import BackwardSegment
from aotgrad.plan_cache.entry import NotCompiled
from aotgrad.slots import ForwardResult, IntermediateBase, Primal, SegmentBoundary, UserOutput

CallResult = tuple[int, int]
"""The number of the call that returned a tensor, among the calls of a function, and the tensor's position in its result."""


@dataclass(frozen=True)
class SubFunction:
    """Some results of a function, and the results that they are computed from, by position among its tensors."""

    results: tuple[int, ...]
    given: tuple[int, ...]


@dataclass(frozen=True)
class Behind:
    """Where a backward from one result leads: to segments that save a value, and to results, where it ends."""

    saving: frozenset[int]
    results: frozenset[int]


def subfunctions_of(
    segments: Sequence[BackwardSegment], slots: Sequence[ForwardResult], separate: bool
) -> tuple[SubFunction, ...]:
    """The subfunctions of a function, in an order in which they can be computed.

    Args:
        segments: the segments of its backward.
        slots: which result of its graph each of its tensors is.
        separate: whether backwards may start at its results one after another.

    Raises:
        NotCompiled: gradients pass through a value that is no result; or some pairs of results allow two backwards, and
            others do not.
    """
    behind = [behind_result(slot, segments, slots) for slot in slots]
    level = depths([each.results for each in behind])
    parts: list[list[int]] = []
    for _, group in itertools.groupby(sorted(range(len(slots)), key=level.__getitem__), level.__getitem__):
        members = list(group)
        parts += group_by_properties(members, [behind[k].saving for k in members]) if separate else [members]
    return tuple(SubFunction(tuple(part), tuple(sorted(set().union(*(behind[k].results for k in part))))) for part in parts)


def behind_result(slot: ForwardResult, segments: Sequence[BackwardSegment], slots: Sequence[ForwardResult]) -> Behind:
    entered = {tangent.of: k for k, segment in enumerate(segments) for tangent in segment.tangents}
    found, results = set(), set()
    left = {entered[slot]} if slot in entered else set()
    while left:
        found.add(segment := left.pop())
        for gradient in segments[segment].gradients:
            match gradient.of:
                case SegmentBoundary():
                    left.add(entered[gradient.of])
                case UserOutput() | IntermediateBase() if gradient.of in slots:
                    results.add(slots.index(gradient.of))
                case Primal():
                    pass
                case _:
                    raise NotCompiled
    return Behind(frozenset(k for k in found if segments[k].saving), frozenset(results))


def depths(sources: Sequence[Collection[int]]) -> list[int]:
    """The longest way to each item from items without sources; `sources` has no cycle.

    >>> depths([[1], [], [0, 1]])
    [1, 0, 2]
    """
    found: dict[int, int] = {}

    def level(item: int) -> int:
        if item not in found:
            found[item] = 1 + max(map(level, sources[item]), default=-1)
        return found[item]

    return [level(item) for item in range(len(sources))]


def group_by_properties(items: Sequence[int], properties: Sequence[Collection[Any]]) -> list[list[int]]:
    """Groups of items: items that share a property are in one group, items without properties in the first one.

    >>> group_by_properties([0, 1, 2, 3], ["a", "b", "ac", ""])
    [[0, 2, 3], [1]]

    Raises:
        NotCompiled: two items in a group share no property.
    """
    groups: list[list[int]] = []
    of = dict(zip(items, properties, strict=True))
    for item in items:
        if of[item]:
            alike = [group for group in groups if any(not set(of[item]).isdisjoint(of[other]) for other in group)]
            groups = [group for group in groups if group not in alike] + [[*itertools.chain(*alike), item]]
    for one, other in itertools.chain.from_iterable(itertools.combinations(group, 2) for group in groups):
        if set(of[one]).isdisjoint(of[other]):
            raise NotCompiled
    first, *others = sorted(groups) or [[]]
    return [sorted([*first, *(item for item in items if not of[item])]), *others]


# --- Running a function with given results ------------------------------------------------------------------------------


class SubstituteResults(TorchFunctionMode):
    """Makes the calls of a function return given tensors, by their places.

    Raises NotCompiled where a call returns no tensor of the same shape and dtype.
    """

    def __init__(self, tensors: Mapping[CallResult, torch.Tensor]) -> None:
        super().__init__()
        self.tensors, self.number = tensors, -1

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.number += 1
        result = func(*args, **(kwargs or {}))
        here = {position: tensor for (number, position), tensor in self.tensors.items() if number == self.number}
        if not here:
            return result
        leaves, spec = pytree.tree_flatten(result)
        if any(position >= len(leaves) or not can_replace(tensor, leaves[position]) for position, tensor in here.items()):
            raise NotCompiled
        return pytree.tree_unflatten([here.get(position, leaf) for position, leaf in enumerate(leaves)], spec)


def can_replace(tensor: torch.Tensor, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (tensor.shape, tensor.dtype) == (value.shape, value.dtype)


@dataclass(frozen=True)
class ComputedElsewhere:
    """A placeholder for a tensor that another subfunction computes: its position."""

    position: int


# No leaf: it is in the structure of what a plan returns.
pytree.register_pytree_node(ComputedElsewhere, lambda elsewhere: ([], elsewhere), lambda _, elsewhere: elsewhere)


@dataclass(frozen=True)
class PlacedResult:
    """The result of a function, and the places of its tensors; `None` if no recorded call returned one."""

    result: Any
    places: tuple[CallResult | None, ...]


pytree.register_pytree_node(
    PlacedResult, lambda placed: ([placed.result], placed.places), lambda c, places: PlacedResult(next(iter(c)), places)
)


def places_in(spec: pytree.TreeSpec) -> tuple[CallResult | None, ...] | None:
    """The places in the structure of what a plan returns, if it has any."""
    if spec.type is PlacedResult:
        return spec.context
    return next(filter(None, map(places_in, spec.children())), None)


def keep_results(results: Collection[int], value: Any) -> Any:
    """`value` without its tensors, except for those at the positions `results`."""
    count = itertools.count()

    def kept(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or (position := next(count)) in results:
            return leaf
        return ComputedElsewhere(position)

    return pytree.tree_map(kept, value)


def complete(value: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
    """`value` with the tensors that are computed elsewhere, by position."""

    def is_elsewhere(leaf: Any) -> bool:
        return isinstance(leaf, ComputedElsewhere)

    return pytree.tree_map(lambda leaf: tensors[leaf.position] if is_elsewhere(leaf) else leaf, value, is_leaf=is_elsewhere)
