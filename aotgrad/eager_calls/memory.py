"""What a run of a function did to memory: which arguments it has changed, and whose memory its results have.

    x.add_(1); return x.view(-1), x.exp()       x is changed; the first result is a view of it, the second one is new

The graph gets new values of changed arguments, and new tensors. The trace repeats the rest on its own tensors: `write` and
`Alias.made_of`. So a write is an ordinary one of the function around, and a view an ordinary view.
"""

from __future__ import annotations

import contextlib
import enum
import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from aotgrad import torch_compat
from aotgrad.eager_calls.forms import DenseForm
from aotgrad.errors import EagerCallError

# -- memory of others


@dataclass(frozen=True)
class OutsideMemory:
    """Memory that a run uses, and that is neither its arguments' nor made by an op of its own.

    Attributes:
        read, changed: by ops.
        kept: of new results that something else holds after the run, by their positions among the new ones.
    """

    read: tuple[StorageWeakRef, ...] = ()
    changed: tuple[StorageWeakRef, ...] = ()
    kept: Mapping[int, StorageWeakRef] = field(default_factory=dict)

    @staticmethod
    def identities(references: Iterable[StorageWeakRef]) -> frozenset[int]:
        """The storages that still exist: see `storage_id`."""
        return frozenset(each.cdata for each in references if not each.expired())


def still_held(references: Sequence[StorageWeakRef]) -> dict[int, StorageWeakRef]:
    """The storages that something holds, apart from reference cycles, by position."""
    if not all(each.expired() for each in references):
        gc.collect()
    return {k: each for k, each in enumerate(references) if not each.expired()}


# -- changed arguments


class WriteKind(enum.IntEnum):
    """How an argument was changed. What is right for one kind is right for those before it."""

    NONE = 0
    HIDDEN = enum.auto()
    """Neither its version nor its history tell: through `.data` or NumPy."""
    UNTRACKED = enum.auto()
    """Its history does not tell: under `no_grad` or through `detach()`."""
    TRACKED = enum.auto()


@dataclass(frozen=True)
class ArgumentWrite:
    """How an argument was changed, and how often its version was raised."""

    kind: WriteKind
    bumps: int

    def to(self, argument: torch.Tensor, value: torch.Tensor) -> None:
        """Change an argument in this way."""
        target = argument.data if self.kind is WriteKind.HIDDEN else argument
        with contextlib.nullcontext() if self.kind is WriteKind.TRACKED else torch.no_grad():
            target.copy_(value)
            for _ in range(self.bumps - 1):
                torch.autograd.graph.increment_version(target)


UNCHANGED = ArgumentWrite(WriteKind.NONE, 0)


@dataclass(frozen=True, eq=False)
class ArgumentBefore:
    """An argument before a run; `values`: a copy of its values, by which hidden writes are found."""

    argument: torch.Tensor
    version: int
    history: Any
    storage: int
    form: DenseForm
    requires_grad: bool
    values: torch.Tensor | None

    @classmethod
    def of(cls, argument: torch.Tensor, values: torch.Tensor | None) -> ArgumentBefore:
        version, storage = torch_compat.version_of(argument) or 0, torch_compat.storage_id(argument)
        form = DenseForm.of(argument)
        return cls(argument, version, argument.grad_fn, storage, form, argument.requires_grad, values)

    def write(self, name: str) -> ArgumentWrite:
        """What was done to it since.

        Raises:
            EagerCallError: something else than its values has changed.
        """
        now = self.argument
        if (torch_compat.storage_id(now), DenseForm.of(now)) != (self.storage, self.form):
            raise EagerCallError(
                f"{name}, which is not traced, gives an argument another size, layout or memory; do so outside"
            )
        is_rebased = now.grad_fn is not self.history
        if now.requires_grad != self.requires_grad and not (is_rebased and now.grad_fn is not None):
            raise EagerCallError(f"{name}, which is not traced, changes the requires_grad of an argument; do so outside")
        bumps = (torch_compat.version_of(now) or 0) - self.version
        if is_rebased:
            return ArgumentWrite(WriteKind.TRACKED, bumps)
        if bumps:
            return ArgumentWrite(WriteKind.UNTRACKED, bumps)
        is_changed = self.values is not None and not same_bytes(now, self.values)
        return ArgumentWrite(WriteKind.HIDDEN, 0) if is_changed else UNCHANGED


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one form have the same bits; `nan` equals itself."""
    flat = [each.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8) for each in (one, other)]
    return torch.equal(*flat)


# -- results


class AliasKind(enum.Enum):
    ITSELF = enum.auto()
    VIEW = enum.auto()
    DETACHED = enum.auto()
    """With the version of the root, but without its history."""
    DATA = enum.auto()
    """Without the version and history of the root."""


@dataclass(frozen=True)
class Alias:
    """A result as the alias of a root: of an argument, or of a new tensor.

    Attributes:
        root: its position among the arguments and the new tensors.
        form, offset: the form, `None` for the root `ITSELF`, and the bytes by which it starts behind the root.
        has_history: whether a `VIEW` was not made under `no_grad`.
        view: of a `VIEW`: how to make it, see `torch_compat.ops_of_view`.
    """

    root: int
    kind: AliasKind
    form: DenseForm | None
    offset: int
    requires_grad: bool
    has_history: bool
    view: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, value: torch.Tensor, position: int, root: torch.Tensor) -> Alias:
        if value is root:
            kind = AliasKind.ITSELF
        elif value._base is root:
            kind = AliasKind.VIEW
        else:
            kind = AliasKind.DETACHED if torch_compat.share_version(value, root) else AliasKind.DATA
        view = torch_compat.ops_of_view(value) if kind is AliasKind.VIEW else None
        offset = start_of(value) - start_of(root)
        has_history = kind is not AliasKind.VIEW or not torch_compat.made_under_no_grad(value)
        form = None if kind is AliasKind.ITSELF else DenseForm.of(value)
        return cls(position, kind, form, offset, value.requires_grad, has_history, view)

    def made_of(self, root: torch.Tensor) -> torch.Tensor:
        """The alias of another root."""
        match self.kind:
            case AliasKind.ITSELF:
                return root
            case AliasKind.VIEW:
                with contextlib.nullcontext() if self.has_history else torch.no_grad():
                    return torch_compat.replayed_view(self.view[0], root, *self.view[1:])
            case AliasKind.DETACHED:
                return self._laid_out(root.detach())
            case AliasKind.DATA:
                return self._laid_out(root.data)

    def _laid_out(self, alias: torch.Tensor) -> torch.Tensor:
        assert self.form is not None
        alias = alias if alias.dtype == self.form.dtype else alias.view(self.form.dtype)
        if DenseForm.of(alias) == self.form and self.offset == 0:
            return alias
        start = alias.storage_offset() + self.offset // alias.element_size()
        return alias.as_strided(self.form.size, self.form.stride, start)


def start_of(tensor: torch.Tensor) -> int:
    """The place of the first element in the storage, in bytes."""
    return int(tensor.storage_offset()) * tensor.element_size()


def find_aliases(
    name: str, arguments: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[Alias]]:
    """The new tensors that results are, or are views of, and each result as an alias of one, or of an argument.

    Raises:
        EagerCallError: a result shares memory in a way that cannot be repeated.
    """
    roots = list(arguments)
    for value in sorted(values, key=lambda value: not value.requires_grad):  # others may be aliases of those
        base = value if value._base is None else value._base
        if all(torch_compat.storage_id(base) != torch_compat.storage_id(root) for root in roots):
            roots.append(base)
    aliases = [alias_among(name, value, roots) for value in values]
    new = roots[len(arguments) :]
    reject_hidden_aliases(name, arguments, new)
    return new, aliases


def alias_among(name: str, value: torch.Tensor, roots: Sequence[torch.Tensor]) -> Alias:
    """A result as an alias of the root with its memory.

    Raises:
        EagerCallError: its history is another one than that of such an alias.
    """
    base = value if value._base is None else value._base
    same = [k for k, root in enumerate(roots) if torch_compat.storage_id(root) == torch_compat.storage_id(base)]
    position = next((k for k in same if roots[k] is base), same[0])
    alias = Alias.of(value, position, roots[position])
    is_repeatable = alias.kind in (AliasKind.ITSELF, AliasKind.VIEW) or not value.requires_grad
    if not is_repeatable or torch_compat.is_made_by_function(value) or not same_bits(value, roots[position], alias.kind):
        raise EagerCallError(
            f"{name}, which is not traced, returns memory of an argument or of another result with a gradient of its own; "
            "let it return a clone()"
        )
    return alias


def same_bits(value: torch.Tensor, root: torch.Tensor, kind: AliasKind) -> bool:
    """Whether an alias that is no view is conjugated and negated as its root; a view is made by the ops that do so."""
    return kind is AliasKind.VIEW or (value.is_conj(), value.is_neg()) == (root.is_conj(), root.is_neg())


def reject_hidden_aliases(name: str, arguments: Sequence[torch.Tensor], new: Sequence[torch.Tensor]) -> None:
    """Raise if a new tensor has memory of another tensor, and a storage of its own, as by NumPy.

    Raises:
        EagerCallError
    """
    spans = list(map(span_of_storage, (*arguments, *new)))
    for k, (start, end) in enumerate(spans[len(arguments) :], len(arguments)):
        if any(start < other_end and other_start < end for other_start, other_end in spans[:k]):
            raise EagerCallError(
                f"{name}, which is not traced, returns memory of an argument or of another result as a tensor that torch "
                "does not know to share it, as by NumPy; let it return a clone()"
            )


def span_of_storage(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses where a storage starts and ends."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
