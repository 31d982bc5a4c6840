"""The guard of a plan that changes its inputs: arguments share memory and version counters as in the trace.

In the usual case no argument reaches into the storage of a changed one, except for those that did so in the trace, and these
lie as they did at the last complete comparison. C++ checks both where it was built (`aotgrad.native`). Each call compares
everything if an argument is a group by itself: a view with two histories, whose base may have another size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aotgrad import native, torch_compat
from aotgrad.convention import MemorySharing
from aotgrad.errors import UnsupportedAliasingError
from aotgrad.graph.geometry import Geometry
from aotgrad.graph.strided_overlap import ByteLayout, overlapping_pairs
from aotgrad.guards.disjoint_storage import Separation, address, picker, span_of


class MemoryGuard:
    """How arguments share memory with those that a plan changes.

    Args:
        args: the distinct arguments of the trace, real or fake; values that are no tensors are ignored.
        sharing: how they share memory.
        traced: what they were traced as, if not `args`: sizes that are symbolic there differ from call to call.
        counters: whether version counters are compared too; fake tensors do not tell.
        closure: the last of `args`, if they are no arguments of a call.

    Raises:
        UnsupportedAliasingError: two arguments are the same memory in two storages; nothing can be a view of both.
    """

    def __init__(
        self,
        args: Sequence[Any],
        sharing: MemorySharing,
        traced: Sequence[Any] = (),
        counters: bool = True,
        closure: Sequence[torch.Tensor] = (),
    ) -> None:
        reject_foreign_memory(args, sharing)
        self.sharing, self.counters, self.closure = sharing, counters, closure
        self.changed = sorted({*sharing.mutated, *sharing.bumped})
        storages = sharing.same_storage(args)
        addressed = [k for k, arg in enumerate(args) if has_address(arg) and k not in sharing.unused]
        self.sharers = [k for sharers in storages for k in sharers]
        self.has_lone_views = any(len(group.starts) == 1 for group in sharing.groups)
        self.is_alone = len(addressed) < 2 and not self.has_lone_views
        self.others_are_apart = separation_of(addressed, self.changed, storages, traced or args)
        self.places_of = places_of(self.sharers, len(storages), traced or args)
        self.verified: Any = None

    def __call__(self, args: Sequence[Any]) -> bool:
        if self.is_alone:
            return True
        if self.closure:
            args = (*args, *self.closure)
        if self.has_lone_views or not self.others_are_apart(args):
            return self.is_as_traced(args)
        if not self.sharers:
            return True
        places = self.places_of(args)
        if places is not None and places == self.verified:
            return True
        if found := self.is_as_traced(args):
            self.verified = places
        return found

    def is_as_traced(self, args: Sequence[Any]) -> bool:
        found = self.sharing.among(args)
        same = found == self.sharing if self.counters else found.groups == self.sharing.groups and self.share_storages(args)
        return same and foreign_memory(args, self.sharing) is None

    def share_storages(self, args: Sequence[Any]) -> bool:
        """Whether arguments that had one version counter still lie in one storage; empty ones have no other trace of it."""
        key = torch_compat.storage_key
        return all(len({key(args[k]) for k in sharers}) == 1 for sharers in self.sharing.counters)

    def groups(self) -> list[tuple[int, ...]]:
        """The positions that share elements, to print."""
        return [tuple(index for index, _ in group.starts) for group in self.sharing.groups]


def separation_of(
    addressed: Sequence[int], changed: Sequence[int], storages: Sequence[Sequence[int]], traced: Sequence[Any]
) -> Callable[[Sequence[Any]], bool]:
    """The check that no argument reaches into the storage of a changed one, except for those of `storages`.

    Args:
        addressed: the positions of arguments with memory.
        changed: the positions of changed arguments.
        storages: for each storage of a changed argument that has several, their positions.
        traced: what the arguments were traced as.
    """
    sharers = {k for sharers in storages for k in sharers}
    written = [sharers[0] for sharers in storages] + [k for k in changed if k not in sharers]
    others = [k for k in addressed if k not in changed and k not in sharers]
    spans = {k: span_of(traced[k]) for k in others}
    separation = native.lookup("separation", functools.partial(Separation, spans=spans))
    return separation([k for k in written if k in addressed], others)


def places_of(sharers: Sequence[int], storages: int, traced: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
    """`Places` of the arguments that share `storages` storages."""
    growing = [k for k in sharers if torch_compat.has_symbolic_shape(traced[k])]
    return native.lookup("sharing", functools.partial(Places, storages=storages, growing=growing))(sharers)


class Places:
    """The facts that decide how tensors share storages and version counters, if they are views of few tensors.

    A view at its old address, within the storage of its base, lies in that storage.

    Args:
        positions: of the tensors.
        storages: how many storages they had in the trace.
        growing: the positions of those with symbolic sizes.
    """

    def __init__(self, positions: Sequence[int], storages: int, growing: Sequence[int]) -> None:
        self.sharers_of, self.storages, self.growing = picker(positions), storages, growing

    def __call__(self, args: Sequence[Any]) -> tuple | None:
        """A value to compare; `None` if there are more roots than storages, since roots may share version counters."""
        tensors = self.sharers_of(args)
        bases = [tensor._base for tensor in tensors]
        base_ids = list(map(id, bases))
        distinct = dict(zip(base_ids, bases, strict=True))
        if id(None) in distinct:  # some are no views, but roots themselves
            del distinct[id(None)]
            distinct |= {id(tensor): tensor for tensor, base in zip(tensors, bases, strict=True) if base is None}
        if len(distinct) > self.storages:
            return None
        roots = [(key, torch_compat.storage_id(root), Geometry.of(root)) for key, root in distinct.items()]
        growing = [Geometry.of(args[k]) for k in self.growing]
        return list(map(address, tensors)), base_ids, roots, growing


def has_address(tensor: Any) -> bool:
    is_strided = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
    return is_strided and tensor.device.type != "meta" and not torch_compat.has_no_memory(tensor)


def reject_foreign_memory(args: Sequence[Any], sharing: MemorySharing) -> None:
    """Raise if a changed argument shares memory, but no storage, with another one.

    Raises:
        UnsupportedAliasingError: names both arguments.
    """
    if (pair := foreign_memory(args, sharing)) is not None:
        raise UnsupportedAliasingError(
            f"inputs {pair[0]} and {pair[1]} are the same memory in two storages (made from one NumPy array?), and one of "
            "them is changed; pass views of one tensor, or a clone()"
        )


def foreign_memory(args: Sequence[Any], sharing: MemorySharing) -> tuple[int, int] | None:
    """Two arguments of different storages that share an element, if one of them changes."""
    used = [None if index in sharing.unused else byte_layout(arg) for index, arg in enumerate(args)]
    pairs = overlapping_pairs(used, sharing.mutated)
    keys = torch_compat.storage_key
    return next((pair for pair in sorted(pairs) if keys(args[pair[0]]) != keys(args[pair[1]])), None)


def byte_layout(tensor: Any) -> ByteLayout | None:
    """Where a real tensor lies; `None` if it has no memory: not strided, on the meta device, fake, or freed."""
    if not has_address(tensor) or torch_compat.is_traced(tensor) or not (start := address(tensor)):
        return None
    item = tensor.element_size()
    return ByteLayout(start, tuple(tensor.size()), tuple(item * step for step in tensor.stride()), item)
