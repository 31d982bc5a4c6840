"""The saved tensors of a segment's autograd node: a backward unpacks what it needs, and releases what no other needs.

A backward that needs some of the saved tensors unpacks only these, since others may have been changed in place. If it does
not retain the graph, tensors stay that eager's nodes need which have not run yet. They move to `ctx.kept`, since the engine
clears all that the node saved.

    y = x.exp() + w.sin();  grad(y.sum(), x)      unpacks exp(x), and keeps w for grad(y.sum(), w)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aotgrad import torch_compat
from aotgrad.runtime.recomputation import SavedValues, check_version
from aotgrad.runtime.variants import VariantKey
from aotgrad.slots import Saved


def saved_values(ctx: Any, key: VariantKey) -> SavedValues:
    """The saved tensors: those that a variant needs, and others if they are at hand and unchanged.

    Raises:
        RuntimeError: eager's, if one that is needed was changed in place or freed.
    """
    slots = ctx.backward.saved_slots
    if ctx.kept is None and (values := torch_compat.saved_tensors_without_hooks(ctx)) is not None:
        return SavedValues(slots, values)  # stand-ins follow
    found = dict(enumerate(unpack(ctx, key) or (None,) * len(slots)))
    found |= unpack_unchanged(ctx, [position for position, tensor in found.items() if tensor is None])
    return saved_at(slots, found)


def saved_at(slots: tuple[Saved, ...], found: Mapping[int, torch.Tensor | None]) -> SavedValues:
    """The saved values with those that were found, by position."""
    values = [found.get(position) for position in range(len(slots))]
    return SavedValues(slots, values, tuple(position for position, value in enumerate(values) if value is None))


def unpack_unchanged(ctx: Any, positions: Sequence[int]) -> dict[int, torch.Tensor]:
    """The saved tensors that were not changed in place nor freed, without those that a saved-tensor hook would make."""
    if not positions or torch_compat.recorded_node(ctx) is not None:
        return {}
    try:
        if ctx.kept is not None:
            kept = {position: ctx.kept[position] for position in positions if position in ctx.kept}
            return {position: each.unpack() for position, each in kept.items() if each.versions}
        hooks = torch_compat.unpack_hooks(ctx, positions)
        plain = [position for position, hook in zip(positions, hooks, strict=True) if hook is None]
        return dict(zip(plain, torch_compat.some_saved_tensors(ctx, plain), strict=True))
    except RuntimeError:
        alone = [unpack_unchanged(ctx, [position]) for position in positions] if len(positions) > 1 else []
        return {position: tensor for found in alone for position, tensor in found.items()}


def unpack(ctx: Any, key: VariantKey) -> Sequence[torch.Tensor | None]:
    """The saved tensors that a variant needs, and `None` for others, which may have been changed, as in eager.

    Raises:
        RuntimeError: eager's, if one was changed in place or freed.
    """
    if not ctx.backward.saves:
        return ()
    needed = ctx.backward.saved_needed(key)
    if needed is None and ctx.kept is None:
        return ctx.saved_tensors[: -ctx.stand_ins] if ctx.stand_ins else ctx.saved_tensors
    values: list[torch.Tensor | None] = [None] * len(ctx.backward.saved_slots)
    positions = range(len(values)) if needed is None else needed
    found = torch_compat.some_saved_tensors(ctx, positions) if ctx.kept is None else kept_tensors(ctx.kept, positions)
    for position, tensor in zip(positions, found, strict=True):
        values[position] = tensor
    return values


def kept_tensors(kept: Mapping[int, KeptTensor], positions: Sequence[int]) -> list[torch.Tensor]:
    """Tensors that earlier backwards kept.

    Raises:
        RuntimeError: eager's, if one of them was freed, or changed in place since.
    """
    if not kept.keys() >= set(positions):
        torch_compat.raise_second_backward()
    return [kept[position].unpack() for position in positions]


def unpack_and_release(ctx: Any, key: VariantKey) -> Sequence[torch.Tensor | None]:
    """The saved tensors that a variant needs; the node releases those that no other backward may need."""
    saved = unpack(ctx, key)
    release(ctx, key)
    return saved


def release(ctx: Any, key: VariantKey) -> None:
    """Record that a backward ran, and release what no other gradient needs, unless the graph is retained."""
    if torch_compat.graph_is_retained():
        return
    if (node := torch_compat.recorded_node(ctx)) is not None:  # torch has freed what the node saved
        node.recomputation = None if ctx.backward.saves else node.recomputation
        return
    ctx.ran = ctx.backward.everything_ran if key is ctx.backward.full else ctx.ran | {key}
    if not ctx.backward.saves:
        return
    positions = ctx.backward.saved_needed_later(ctx.ran)
    if ctx.kept is None:
        kept = KeptTensor.all_of(ctx, positions)
        torch_compat.release_saved_tensors(ctx)
    else:
        kept = {position: ctx.kept[position] for position in positions if position in ctx.kept}
    ctx.kept = kept or None
    if not kept:
        ctx.recomputation = None


def release_all(ctx: Any) -> None:
    """The same for the first backward of a node, with all gradients: no other backward may need any saved tensor."""
    if ctx.backward.saves:
        ctx.ran = ctx.backward.everything_ran
        torch_compat.release_saved_tensors(ctx)
        ctx.recomputation = None


def keep_all(ctx: Any) -> None:
    """Keep what the node saved after a backward of inner values alone: in eager, its last ops have not run, and may yet."""
    if torch_compat.graph_is_retained() or torch_compat.recorded_node(ctx) is not None or ctx.kept is not None:
        return
    ctx.kept = KeptTensor.all_of(ctx, range(len(ctx.backward.saved_slots)))


@dataclass(frozen=True)
class KeptTensor:
    """A saved tensor that the engine does not hold, or that more tensors guard than itself.

    `make` returns it, or raises eager's error. `versions`: tensors that share its memory, with the versions that they must
    have; none if a saved-tensor hook makes the tensor.
    """

    make: Callable[[], torch.Tensor]
    versions: tuple[tuple[torch.Tensor, int | None], ...] = ()

    @classmethod
    def all_of(cls, ctx: Any, positions: Sequence[int]) -> dict[int, KeptTensor]:
        """Saved tensors of a node, by position."""
        if not positions:
            return {}
        hooks = dict(zip(positions, torch_compat.unpack_hooks(ctx, positions), strict=True))
        plain = [position for position, hook in hooks.items() if hook is None]
        try:
            tensors = torch_compat.some_saved_tensors(ctx, plain)
        except RuntimeError as error:
            if len(positions) == 1:
                return {plain[0]: cls(functools.partial(raise_error, str(error)))}
            return {position: each for k in positions for position, each in cls.all_of(ctx, [k]).items()}
        kept = {position: cls.of(tensor.detach()) for position, tensor in zip(plain, tensors, strict=True)}
        return {position: kept[position] if hook is None else cls(hook) for position, hook in hooks.items()}

    @classmethod
    def of(cls, tensor: torch.Tensor) -> KeptTensor:
        """A tensor in its present version."""
        return cls(lambda: tensor, ((tensor, torch_compat.version_of(tensor)),))

    def watching(self, tensor: torch.Tensor) -> KeptTensor:
        """The same, which another tensor guards, too, in its present version."""
        return replace(self, versions=(*self.versions, (tensor, torch_compat.version_of(tensor))))

    def unpack(self) -> torch.Tensor:
        """The tensor.

        Raises:
            RuntimeError: eager's, if it was changed in place.
        """
        for tensor, version in self.versions:
            check_version(tensor, version)
        return self.make()


def raise_error(message: str) -> torch.Tensor:
    raise RuntimeError(message)
