"""Subclasses of tensors that wrap other tensors."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._library.opaque_object import is_opaque_value_type
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, mb_unwrap_functional_tensor
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass

from aotgrad.torch_compat.fakes import fixed_nested_int
from aotgrad.torch_compat.functional_tensors import same_functional
from aotgrad.torch_compat.shapes import hints

_KNOWN = frozenset((torch.Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor))


def is_wrapper_subclass(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a subclass that `__tensor_flatten__` takes apart, and no tensor of a trace."""
    return is_traceable_wrapper_subclass(tensor) and not isinstance(tensor, FunctionalTensor)


def has_own_dispatch_rules(kind: type[torch.Tensor]) -> bool:
    """Whether a tensor class has a `__torch_dispatch__`, and is none of a trace."""
    return kind not in _KNOWN and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def is_device_mesh(value: Any) -> bool:
    """Whether a value is a `DeviceMesh`, which Dynamo passes to graphs as it is."""
    return torch.distributed.is_available() and isinstance(value, torch.distributed.device_mesh.DeviceMesh)


def is_opaque_value(value: Any) -> bool:
    """Whether a value describes a DTensor, and graphs of Dynamo return it as it is: a placement, or a mesh, by content."""
    return is_opaque_value_type(type(value)) or is_device_mesh(value) or _is_placement(value)


def _is_placement(value: Any) -> bool:
    """Whether a value is a placement, which torch 2.11 does not register as opaque."""
    placements = sys.modules.get("torch.distributed.tensor.placement_types")
    return placements is not None and isinstance(value, placements.Placement)


def outside_of_modes() -> Any:
    """Inside, no mode sees an op."""
    return _disable_current_modes()


def flattened(wrapper: Any) -> tuple[Sequence[str], Any]:
    """The names of the attributes that a wrapper consists of, and what else it needs."""
    return wrapper.__tensor_flatten__()


def another_object(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor with the same memory, unrelated for autograd; in a trace, with the same value."""
    return same_functional(tensor) if isinstance(tensor, FunctionalTensor) else tensor.detach()


CACHED_PARTS = frozenset(("_min_seqlen_tensor", "_max_seqlen_tensor"))
"""What a nested tensor keeps once it is computed from the offsets; the last of its parts."""


class Given(enum.Enum):
    """What stands for an argument of a view op that each call has for itself."""

    NUMBER = enum.auto()
    TENSOR = enum.auto()
    RAGGED = enum.auto()
    """The size of the nested tensor that belongs to its offsets."""


def _is_ragged(number: Any) -> bool:
    return isinstance(number, torch.SymInt) and number.node.is_nested_int()


def is_ragged_size(value: Any) -> bool:
    """Whether a value is the size of the ragged dimension of a nested tensor, and no symbol of Dynamo's."""
    return _is_ragged(value) and not value.node.is_symbolic()


def remember_ragged_size(parts: Mapping[str, torch.Tensor], size: Sequence[Any]) -> None:
    """Tell the lengths of a nested tensor, or else its offsets, in a trace, which of its sizes belongs to them.

    A fake of offsets that a nested tensor has may have a symbol of its own, for which the trace has no placeholder. Neither
    has it one for a symbol of another trace.
    """
    ragged: Any = next(filter(_is_ragged, size), None)
    fake: Any = mb_unwrap_functional_tensor(parts.get("_lengths", parts["_offsets"]))
    if ragged is None or not isinstance(fake, FakeTensor):
        return
    is_symbolic = ragged.node.is_symbolic()
    if is_symbolic and ragged.node.shape_env is not fake.fake_mode.shape_env:
        return
    if fake.nested_int_memo is None or not is_symbolic:
        fake.nested_int_memo = ragged if is_symbolic else fixed_nested_int(ragged)


def other_objects(parts: Sequence[torch.Tensor], is_nested: bool) -> list[torch.Tensor]:
    """Other tensors with the same memory. The size of a nested tensor belongs to its offsets as an object: they stay it."""
    return [another_object(part) if k == 0 or not is_nested else part for k, part in enumerate(parts)]


def part_with_version(part: torch.Tensor, wrapper: torch.Tensor) -> torch.Tensor:
    """A tensor with the memory of a part and the version counter of its wrapper, which a change of the wrapper raises.

    An op that changes a wrapper in place leaves the version counters of its parts as they are. The size of a nested tensor
    belongs to its offsets as an object, so they stay this object.
    """
    if wrapper.is_nested and part is not wrapper._values:
        return part
    if isinstance(part, FunctionalTensor) or wrapper.is_inference() or torch.is_inference_mode_enabled():
        return another_object(part)
    alias = alias_with_version(wrapper)
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        if not torch._has_compatible_shallow_copy_type(alias, part):
            return part.detach()
        alias.data = part
    return alias


def alias_with_version(wrapper: torch.Tensor) -> torch.Tensor:
    """A tensor without memory that has the version counter of a wrapper, and no parts."""
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        return wrapper.detach()


class ViewOp(NamedTuple):
    """One op of a view: `op(base, *args, **kwargs)`, and `[item]` where it returns a list."""

    op: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    item: int | None = None

    def of_call(self, numbers: Iterator[Any], tensors: Iterator[torch.Tensor]) -> ViewOp:
        """The op with the next of these numbers and tensors in their places."""
        given = {Given.NUMBER: numbers, Given.TENSOR: tensors}
        return self._replace(args=_changed(self.args, lambda value: next(given[value]) if value in given else value, Given))

    def results(self, base: torch.Tensor) -> Any:
        """What the op returns: a view, or a list of them."""
        args = _changed(self.args, lambda _: _ragged_size(base), Given)
        with torch._C.DisableTorchFunction():
            return self.op(base, *args, **dict(self.kwargs))

    def view(self, base: torch.Tensor) -> torch.Tensor:
        return self.results(base) if self.item is None else self.results(base)[self.item]


def _changed(values: Any, change: Callable[[Any], Any], kind: Any) -> Any:
    """The (nested) arguments with others in place of those of this kind."""
    if isinstance(values, (tuple, list)):
        changed = [_changed(value, change, kind) for value in values]
        return changed if isinstance(values, list) else tuple(changed)
    return change(values) if isinstance(values, kind) else values


class _ViewRecorder(TorchDispatchMode):
    """Records the ops from a tensor without memory to its view, with the numbers and tensors that they take.

    Attributes:
        views: what the last op has returned.
        is_list: whether it has returned a list, maybe of one.
        others: tensors that ops take, by what stands for them.
    """

    def __init__(self, blank: torch.Tensor) -> None:
        super().__init__()
        self.views, self.is_list = [blank], False
        self.ops: list[ViewOp] = []
        self.numbers: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.others: list[tuple[torch.Tensor, torch.Tensor]] = []

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """What an op takes in place of a tensor."""
        if _stands_for_class(tensor):
            return tensor
        if is_wrapper_subclass(tensor):
            raise RuntimeError("an op of the view takes another wrapper, which a later call does not have")
        with outside_of_modes():
            self.others.append((_blank_like(tensor), tensor))
        return self.others[-1][0]

    def continues(self, view: Any) -> bool:
        """Whether a tensor is the view so far; notes which one of a list."""
        place = next((k for k, each in enumerate(self.views) if each is view), None)
        if place is not None and self.is_list:
            self.ops[-1] = self.ops[-1]._replace(item=place)
        return place is not None

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if not args or not self.continues(args[0]):
            return op(*args, **(kwargs or {}))
        base, rest = args[0], args[1:]
        self.ops.append(ViewOp(op, _changed(rest, self.noted, (torch.SymInt, torch.Tensor)), tuple((kwargs or {}).items())))
        known = _changed(rest, lambda number: _ragged_size(base) if _is_ragged(number) else hints([number])[0], torch.SymInt)
        result = op(base, *known, **(kwargs or {}))
        self.is_list = isinstance(result, (tuple, list))
        self.views = list(result) if self.is_list else [result]
        return result

    def noted(self, value: Any) -> Any:
        """What stands for an argument."""
        if isinstance(value, torch.SymInt):
            if _is_ragged(value):
                return Given.RAGGED
            self.numbers.append(value)
            return Given.NUMBER
        other = next((tensor for blank, tensor in self.others if blank is value), None)
        if other is None:
            return value
        self.tensors.append(other)
        return Given.TENSOR


def ops_of_view(view: torch.Tensor) -> tuple[tuple[ViewOp, ...], list[Any], list[torch.Tensor]]:
    """The ops that have made a view of its base, and the symbolic numbers and the tensors that they take.

    Raises:
        RuntimeError: an op takes another wrapper, which a later call does not have, or no ops are known.
    """
    with outside_of_modes(), torch.enable_grad(), tracked_views():
        blank = _blank_like(view._base)
        with _ViewRecorder(blank) as recorder:
            made = view._view_func_unsafe(blank, lambda number: number, recorder.stand_in)
    if not recorder.continues(made):
        raise RuntimeError("the ops that have made the view are not known")
    return tuple(recorder.ops), recorder.numbers, recorder.tensors


def _stands_for_class(tensor: torch.Tensor) -> bool:
    """Whether a tensor only tells the op its class: the op that makes a nested tensor takes one without memory."""
    return is_wrapper_subclass(tensor) and tensor.is_meta


def _blank_like(base: torch.Tensor) -> torch.Tensor:
    """A tensor of that form without memory; it is a wrapper only if `base` is nested."""
    if not base.is_nested:
        return torch.empty_strided(hints(base.size()), hints(base.stride()), dtype=base.dtype, device="meta")
    nested: Any = base
    values, offsets, lengths = (
        None if part is None else _blank_like(part) for part in (nested._values, nested._offsets, nested._lengths)
    )
    return NestedTensor(values, offsets, lengths=lengths, _ragged_idx=nested._ragged_idx)


def _ragged_size(nested: Any) -> Any:
    return nested._size[nested._ragged_idx]


def replayed_view(
    ops: Sequence[ViewOp], base: torch.Tensor, numbers: Iterable[Any], tensors: Iterable[torch.Tensor] = ()
) -> torch.Tensor:
    """The view of `base` by these ops, which take these numbers and tensors."""
    given = iter(numbers), iter(tensors)
    for op in ops:
        base = op.of_call(*given).view(base)
    return base


def tracked_views() -> Any:
    """Inside, autograd notes the ops that make a view: some subclasses have no `as_strided`."""
    return torch.autograd._force_original_view_tracking(True)


def dispatches_itself(classes: Iterable[type]) -> bool:
    """Whether one of the classes of an op's arguments has a `__torch_dispatch__` of its own, which comes first."""
    return not _KNOWN.issuperset(classes)


def with_parts(values: Sequence[Any]) -> list[Any]:
    """The values, and the parts of the wrapper subclasses among them: a change of a wrapper is one of its parts."""
    found = list(values)
    for value in found:  # which also goes through what is added
        if isinstance(value, torch.Tensor) and is_wrapper_subclass(value):
            found += [getattr(value, name) for name in flattened(value)[0]]
    return found
