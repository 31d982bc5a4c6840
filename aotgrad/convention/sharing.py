"""Finds arguments that share memory or a version counter with a mutated argument.

    t = torch.zeros(4); f(t[:3], t[1:], t[3:])      with f mutating its first argument
    MemorySharing(groups=(Group(nbytes=16, starts=((0, 0), (1, 4)), ...),), counters=((0, 1, 2),))

The third argument shares no element with the first, so it is not in the group, but its version rises, too. Overlap is
decided exactly (`graph/strided_overlap.py`). In: real or fake tensors, and what the function does to them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.graph.strided_overlap import ByteLayout, linked_groups, overlap
from aotgrad.ir import InputAliasInfo

ALIGNMENT = 16
"""Bytes: the itemsize of the largest dtype. A base starts at a multiple of it, so that every dtype can view it."""


@dataclass(frozen=True)
class Family:
    """Arguments that are views of one tensor. `root` is the tensor itself, or a view of it if `through_base`."""

    members: tuple[int, ...]
    root: int
    through_base: bool
    requires_grad: bool


@dataclass(frozen=True)
class Group:
    """Arguments that overlap, directly or transitively, within `nbytes` of memory; or one view with two histories.

    `starts`: (argument, offset of its first byte in that memory).
    """

    nbytes: int
    starts: tuple[tuple[int, int], ...]
    families: tuple[Family, ...]


@dataclass(frozen=True)
class MemorySharing:
    """The memory sharing that a trace depends on, given which arguments are mutated.

    `mutated`: arguments that are written. `hidden`: those whose change autograd does not see. `bumped`: those whose
    version rises. `unused`: those that may share any memory. `counters`: sets of arguments with one version counter, if one
    of them is bumped.
    """

    mutated: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    bumped: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()
    groups: tuple[Group, ...] = ()
    counters: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, args: Sequence[Any], infos: Sequence[InputAliasInfo | None]) -> MemorySharing:
        """The sharing that matters to a function that does to `args` what `infos` say."""
        tensors = [(index, info) for index, info in enumerate(infos) if info is not None]
        mutated = tuple(index for index, info in tensors if info.is_written or info.changed_later)
        hidden = tuple(index for index, info in tensors if info.is_written and info.hidden_from_autograd)
        bumped = tuple(index for index, info in tensors if info.version_bumps)
        unused = tuple(index for index, info in tensors if not info.is_used)
        return cls(mutated, hidden, bumped, unused).among(args)

    def among(self, args: Sequence[Any]) -> MemorySharing:
        """The sharing of other arguments of the same function."""
        groups: list[Group] = []
        counters: list[tuple[int, ...]] = []
        for sharers in self.same_storage(args):
            groups += [make_group(args, members) for members in overlapping_groups(args, sharers, self.mutated)]
            counters += same_counter(args, families_of(args, sharers), self.bumped)
        grouped = {index for group in groups for index, _ in group.starts}
        alone = [index for index in self.mutated if index not in grouped]
        groups += [make_group(args, [index]) for index in alone if shows_two_histories(args[index], index in self.hidden)]
        return replace(self, groups=tuple(groups), counters=tuple(counters))

    def same_storage(self, args: Sequence[Any]) -> list[list[int]]:
        """For each storage of a changed argument that several used strided ones share: these arguments."""
        changed = {*self.mutated, *self.bumped}
        if not changed:
            return []
        sharers: dict[int, list[int]] = {torch_compat.storage_key(args[index]): [] for index in changed}
        for index, arg in enumerate(args):
            if isinstance(arg, torch.Tensor) and index not in self.unused:
                sharers.get(torch_compat.storage_key(arg), []).append(index)
        return [indices for indices in sharers.values() if len(indices) > 1]

    def __bool__(self) -> bool:
        return bool(self.groups or self.counters)

    def matches(self, args: Sequence[Any]) -> bool:
        """Whether other arguments of the same function share in the same way."""
        return self.among(args) == self


def overlapping_groups(args: Sequence[Any], sharers: Sequence[int], mutated: Collection[int]) -> list[list[int]]:
    """The sharers of one storage that common elements, or a common history, connect to a mutated one."""
    layouts = {index: ByteLayout.of(args[index]) for index in sharers}
    roots = {index: root_of(args[index]) for index in sharers}

    def are_linked(one: int, other: int) -> bool:
        return overlap(layouts[one], layouts[other]) or (roots[one] is roots[other] and has_history(roots[one]))

    groups = linked_groups(sharers, mutated, are_linked)
    return [members for members in groups if len(members) > 1]


def has_history(root: torch.Tensor) -> bool:
    """Whether a write to one view of a tensor gives all its views a new history, through the new `root`."""
    return root.requires_grad and not root.is_leaf


def has_two_histories(written: torch.Tensor) -> bool:
    """Whether a write gives a tensor a second history: it does so for a view of a tensor that requires grad.

    The analysis refuses a view that autograd forbids after a write.
    """
    is_view = written._base is not None and written._base.requires_grad
    return is_view and not torch_compat.is_forbidden_after_a_write(written)


def shows_two_histories(written: torch.Tensor, is_hidden: bool) -> bool:
    """Whether the two histories are observable. After a write that autograd sees, only earlier hooks show the old one."""
    return has_two_histories(written) and (is_hidden or torch_compat.is_hooked_view(written))


def root_of(tensor: torch.Tensor) -> torch.Tensor:
    """The base of a view, or the tensor itself."""
    return tensor if tensor._base is None else tensor._base


def families_of(args: Sequence[Any], members: Sequence[int]) -> list[Family]:
    """The members, grouped by the tensor that they are views of. A lone member is its own root."""
    by_root: dict[int, list[int]] = {}
    for index in members:
        by_root.setdefault(id(root_of(args[index])), []).append(index)
    return [make_family(args, family) for family in by_root.values()]


def make_family(args: Sequence[Any], members: Sequence[int]) -> Family:
    own_root = next((index for index in members if args[index]._base is None), None)
    root = members[0] if own_root is None else own_root
    requires_grad = any(args[index].requires_grad for index in members)
    through_base = own_root is None and (len(members) > 1 or has_two_histories(args[root]))
    return Family(tuple(members), root, through_base, requires_grad)


def make_group(args: Sequence[Any], members: Sequence[int]) -> Group:
    """The group of the members: its memory includes the tensor that gets their gradient."""
    families = tuple(families_of(args, members))
    reject_several_histories(families)
    roots = [args[family.root] for family in families if family.requires_grad]
    layouts = [ByteLayout.of(args[index]) for index in members]
    whole = [*layouts, *(ByteLayout.of(root_of(root)) for root in roots)]
    start = min(layout.offset for layout in whole) // ALIGNMENT * ALIGNMENT
    end = -(-max(layout.end for layout in whole) // ALIGNMENT) * ALIGNMENT
    nbytes = min(end, int(args[members[0]].untyped_storage().nbytes())) - start
    starts = tuple((index, layout.offset - start) for index, layout in zip(members, layouts, strict=True))
    return Group(nbytes, starts, families)


def reject_several_histories(families: Sequence[Family]) -> None:
    """Raise if overlapping arguments require grad independently of one another.

    Raises:
        UnsupportedAliasingError: names both arguments.
    """
    histories = [family.root for family in families if family.requires_grad]
    if len(histories) > 1:
        raise UnsupportedAliasingError(
            f"inputs {histories[0]} and {histories[1]} share memory, one of them or a third one is mutated, and both "
            "require grad with separate histories (a detached alias on which requires_grad_() was called?); pass a clone()"
        )


def same_counter(args: Sequence[Any], families: Sequence[Family], bumped: Collection[int]) -> list[tuple[int, ...]]:
    """Sets of members that share a version counter with a bumped one."""
    seeds = [family for family in families if set(family.members) & set(bumped)]
    classes = linked_groups(families, seeds, lambda one, other: have_one_counter(args[one.root], args[other.root]))
    counters = [tuple(sorted(index for family in merged for index in family.members)) for merged in classes]
    return [members for members in counters if len(members) > 1]


def have_one_counter(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two real tensors have one version counter. False for fakes, which do not show it."""
    if isinstance(one, torch_compat.FakeTensor) or one.is_inference() or other.is_inference():
        return False
    return one._version == other._version and torch_compat.share_version(one, other)
