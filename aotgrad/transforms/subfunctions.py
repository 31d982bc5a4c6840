"""A function whose results have autograd nodes of their own, as several functions: its subfunctions.

    def f(x): h = x.exp(); return h, h.sin()        SubFunction(results=(0,), given=()): h, of x
                                                    SubFunction(results=(1,), given=(0,)): h.sin(), of x and h

Inside of `torch.func` transforms a compiled function is one autograd node (`transforms/functorch.py`). The gradient of
the sine has to pass through `h`, which may be asked for, or replaced by a hook: there are two nodes, of two functions.

In: the segments of a function's backward. Out: its subfunctions. To compute one, the function runs from its start, and each
given result takes the place of what the call returned that made it: a `CallResult`.
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
from aotgrad.slots import ForwardResult, IntermediateBase, Primal, SegmentBoundary, UserOutput
from aotgrad.transforms.input_views import NotCompiled

CallResult = tuple[int, int]
"""Which call of a function returned a tensor, and which of its results that is."""


@dataclass(frozen=True)
class SubFunction:
    """Some of a function's results, and those that they are computed from; by position among its tensors."""

    results: tuple[int, ...]
    given: tuple[int, ...]


@dataclass(frozen=True)
class Behind:
    """What a backward from one result comes to: segments that save a value, and results, where it ends."""

    saving: frozenset[int]
    results: frozenset[int]


def subfunctions_of(
    segments: Sequence[BackwardSegment], slots: Sequence[ForwardResult], separate: bool
) -> tuple[SubFunction, ...]:
    """The parts of a function, in the order in which they can be computed.

    Args:
        segments: those of its backward.
        slots: which result of its graph each of its tensors is.
        separate: whether a backward may come to its results one after another.

    Raises:
        NotCompiled: gradients pass through what is no result; or whether a second backward raises depends on which two of
            several results it is.
    """
    behind = [behind_result(slot, segments, slots) for slot in slots]
    level = depths([each.results for each in behind])
    parts: list[list[int]] = []
    for _, group in itertools.groupby(sorted(range(len(slots)), key=level.__getitem__), level.__getitem__):
        members = list(group)
        parts += separated(members, [behind[k].saving for k in members]) if separate else [members]
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
    """How many steps lead to each of some items from those without sources, at most; `sources` has no cycle.

    >>> depths([[1], [], [0, 1]])
    [1, 0, 2]
    """
    found: dict[int, int] = {}

    def level(item: int) -> int:
        if item not in found:
            found[item] = 1 + max(map(level, sources[item]), default=-1)
        return found[item]

    return [level(item) for item in range(len(sources))]


def separated(items: Sequence[int], properties: Sequence[Collection[Any]]) -> list[list[int]]:
    """Groups of items, those with a property in common in one. Items without properties go to the first group.

    >>> separated([0, 1, 2, 3], ["a", "b", "ac", ""])
    [[0, 2, 3], [1]]

    Raises:
        NotCompiled: two in a group have none in common.
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


# --- Running a function with some of its results -----------------------------------------------------------------------


class SubstituteResults(TorchFunctionMode):
    """Lets calls of a function return other tensors than they do: those that are given, by their places.

    Raises NotCompiled where a call does not return such a tensor.
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
        if any(position >= len(leaves) or not stands_for(tensor, leaves[position]) for position, tensor in here.items()):
            raise NotCompiled
        return pytree.tree_unflatten([here.get(position, leaf) for position, leaf in enumerate(leaves)], spec)


def stands_for(tensor: torch.Tensor, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (tensor.shape, tensor.dtype) == (value.shape, value.dtype)


@dataclass(frozen=True)
class ComputedElsewhere:
    """Where a result has a tensor that another part computes: its position."""

    position: int


# No leaf: what a plan returns has it in its structure.
pytree.register_pytree_node(ComputedElsewhere, lambda elsewhere: ([], elsewhere), lambda _, elsewhere: elsewhere)


@dataclass(frozen=True)
class PlacedResult:
    """What a function returns, and the places of its tensors, `None` for what no call returned that is known."""

    result: Any
    places: tuple[CallResult | None, ...]


pytree.register_pytree_node(
    PlacedResult, lambda placed: ([placed.result], placed.places), lambda c, places: PlacedResult(next(iter(c)), places)
)


def places_in(spec: pytree.TreeSpec) -> tuple[CallResult | None, ...] | None:
    """The places in the structure of what a plan returns, if it has some."""
    if spec.type is PlacedResult:
        return spec.context
    return next(filter(None, map(places_in, spec.children())), None)


def only(results: Collection[int], value: Any) -> Any:
    """`value` without its tensors, except for some."""
    count = itertools.count()

    def kept(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or (position := next(count)) in results:
            return leaf
        return ComputedElsewhere(position)

    return pytree.tree_map(kept, value)


def completed(value: Any, tensors: Mapping[int, torch.Tensor]) -> Any:
    """`value` with those that are elsewhere, by their position."""

    def is_elsewhere(leaf: Any) -> bool:
        return isinstance(leaf, ComputedElsewhere)

    return pytree.tree_map(lambda leaf: tensors[leaf.position] if is_elsewhere(leaf) else leaf, value, is_leaf=is_elsewhere)
