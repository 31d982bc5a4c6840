"""Layouts of traced values, where the graph may lay them out differently from eager."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode, disable_functional_mode

from aotgrad.torch_compat.functional_tensors import from_functional, recorded_views, replace_value
from aotgrad.torch_compat.memory import contiguous_in_order, is_dense_layout, storage_id, storage_key
from aotgrad.torch_compat.ops import written_arguments
from aotgrad.torch_compat.shapes import ends_within, has_symbolic_shape, hints, known_contiguous, known_equal


class AbsoluteGeometry:
    """Refuses `as_strided` and a write on the same storage of a trace, unless the tensor is plain.

    After a write, the graph has a new value; the old one may have had gaps or an offset that it lacks. Then `as_strided` is
    refused, and so is a write after an `as_strided`. One without an offset starts where the tensor does: it may have an
    offset if the view ends within it.
    """

    STRIDED = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_.default)
    ALIGNED = (torch.ops.aten.view_as_complex.default, torch.ops.aten.view.dtype)

    def __init__(self) -> None:
        self.depends_on_offsets = self.makes_arguments = False
        self.strided: dict[int, torch.UntypedStorage] = {}
        self.written: dict[int, torch.UntypedStorage] = {}

    def check(self, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise if an op would use geometry that the graph does not keep; note an op that depends on storage offsets."""
        says_where = op in self.STRIDED and len(args) > 3 and args[3] is not None  # perhaps read from the tensor
        self.depends_on_offsets |= op in self.ALIGNED or (says_where and not self.makes_arguments)
        if op is torch.ops.aten.view_as_complex.default and args[0].storage_offset() % 2:  # eager's offset
            raise RuntimeError("Tensor must have a storage_offset divisible by 2")
        if op in self.STRIDED and isinstance(args[0], FunctionalTensor):
            if not is_plain(args[0]) and not (is_compact(args[0]) and not says_where and ends_within(*args[:3])):
                self.note(args[0], self.strided, {} if keeps_geometry(args[0]) else self.written)
        elif op._schema.is_mutable and torch.Tag.inplace_view not in op.tags:
            for value in written_arguments(op, args, kwargs):
                if isinstance(value, FunctionalTensor):
                    self.note(value, self.written, self.strided)

    def note(self, value: torch.Tensor, own: dict, other: dict) -> None:
        storage = value.untyped_storage()
        if storage._cdata in other:
            raise RuntimeError("as_strided and a write to the same memory")
        own[storage._cdata] = storage


def keeps_geometry(tensor: torch.Tensor) -> bool:
    """Whether the value of a functional tensor lies in memory as the tensor does in eager."""
    value = from_functional(tensor)
    eager = (*tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes())
    return known_equal((*value.stride(), value.storage_offset(), value.untyped_storage().nbytes()), eager)


class UnsafePieces:
    """Storages of a trace that share memory in eager: what `unsafe_split` splits, and the pieces.

    For functionalization the pieces are copies. So after a write to the whole or a piece, the other may not be used.
    """

    SPLITS = (torch.ops.aten.unsafe_split.Tensor, torch.ops.aten.unsafe_split_with_sizes.default)

    def __init__(self) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.whole_of: dict[int, int] = {}
        self.stale: set[int] = set()

    def add(self, whole: torch.Tensor, pieces: Sequence[torch.Tensor]) -> None:
        for piece in pieces:
            self.whole_of[storage_id(piece)] = storage_id(whole)
            self.storages.update((storage_id(tensor), tensor.untyped_storage()) for tensor in (whole, piece))

    def write(self, tensor: torch.Tensor) -> None:
        """Mark as stale what does not see a write to `tensor`: the wholes it is a piece of, and its own pieces."""
        key = storage_id(tensor)
        self.stale.update(self.wholes(key))
        self.stale.update(piece for piece in self.whole_of if key in self.wholes(piece))

    def wholes(self, key: int) -> Iterator[int]:
        while (whole := self.whole_of.get(key)) is not None:
            yield whole
            key = whole

    def check(self, values: Sequence[Any]) -> None:
        """Raise for a tensor that misses a write which reaches its memory in eager."""
        if self.stale and any(isinstance(v, FunctionalTensor) and storage_key(v) in self.stale for v in values):
            raise RuntimeError("unsafe_split and a write to the same memory")

    def note(self, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note what an op has done."""
        if op in self.SPLITS:
            self.add(args[0], result)
        elif self.storages and op._schema.is_mutable:
            for tensor in written_arguments(op, args, kwargs):
                if tensor.layout is torch.strided:
                    self.write(tensor)


def check_pieces(mode: FunctionalTensorMode, values: Sequence[Any]) -> None:
    """Raise for a tensor that misses a write to a piece or the whole of an `unsafe_split` (see `UnsafePieces`)."""
    mode._pieces.check(values)


def depends_on_offsets(mode: FunctionalTensorMode) -> bool:
    """Whether an op that ran in a `functional_mode` depends on the storage offset of a tensor."""
    return mode._geometry.depends_on_offsets


@contextlib.contextmanager
def making_arguments(mode: FunctionalTensorMode) -> Iterator[None]:
    """Inside, views of the calling convention are created; they do not depend on the offsets of a call."""
    mode._geometry.makes_arguments = True
    try:
        yield
    finally:
        mode._geometry.makes_arguments = False


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a functional tensor is contiguous from the start of its storage, and no view."""
    return is_compact(tensor) and known_equal([tensor.storage_offset()], [0])


def is_compact(tensor: torch.Tensor) -> bool:
    """Whether a functional tensor is contiguous, and no view."""
    return known_contiguous(tensor) and not recorded_views(tensor)


@contextlib.contextmanager
def keep_layouts(written: Iterable[torch.Tensor]) -> Iterator[None]:
    """Keep the strides of tensors that are written inside: the out-of-place form of many ops is contiguous."""
    functional = [tensor for tensor in written if isinstance(tensor, FunctionalTensor)]
    before = [(tensor, tensor.stride()) for tensor in functional if is_not_contiguous(tensor)]
    yield
    with disable_functional_mode():
        for tensor, stride in before:
            value = from_functional(tensor)
            if not known_equal(value.stride(), stride) and is_dense_layout(hints(tensor.size()), hints(stride)):
                replace_value(tensor, contiguous_in_order(value, stride))


def keep_lazy_bits(values: Iterable[Any]) -> None:
    """Restore the conjugate and negative bits of functional tensors' values, where they differ from the tensors' own.

    A write leaves a tensor and its base with values of other bits, and views derived from them would be wrong. Each op
    checks its arguments first, and a capture checks its results last.
    """
    for tensor in values:
        if isinstance(tensor, FunctionalTensor) and (tensor.is_complex() or tensor.is_neg()):
            with disable_functional_mode():
                _keep_lazy_bits(tensor)


def _keep_lazy_bits(tensor: FunctionalTensor) -> None:
    value = from_functional(tensor)
    if (tensor.is_conj(), tensor.is_neg()) == (value.is_conj(), value.is_neg()):
        return
    value = value.resolve_conj().resolve_neg()
    if tensor.is_conj():
        value = torch.conj_physical(value)
    if tensor.is_neg():
        value = torch.neg(value)
    value = value.conj() if tensor.is_conj() else value
    replace_value(tensor, value._neg_view() if tensor.is_neg() else value)


def is_not_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a traced tensor is not contiguous; one with a data-dependent size counts as contiguous."""
    if not has_symbolic_shape(tensor):
        return not tensor.is_contiguous()
    numbers = (*tensor.size(), *tensor.stride())
    have_hints = all(number.node.has_hint() for number in numbers if isinstance(number, torch.SymInt))
    return have_hints and not known_contiguous(tensor)
