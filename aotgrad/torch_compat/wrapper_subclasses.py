"""Subclasses of tensors that wrap other tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._library import opaque_object
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, mb_unwrap_functional_tensor
from torch.nested._internal.nested_tensor import NestedTensor
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from aotgrad.torch_compat.fakes import fixed_nested_int
from aotgrad.torch_compat.functional_tensors import same_functional
from aotgrad.torch_compat.shapes import hints

_is_opaque_value_type = getattr(opaque_object, "is_opaque_value_type", None)
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
    return is_device_mesh(value) or (_is_opaque_value_type is not None and _is_opaque_value_type(type(value)))


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


class _RaggedSize:
    """Stands for the size of a nested tensor that belongs to its offsets."""


def _is_ragged(number: Any) -> bool:
    return isinstance(number, torch.SymInt) and number.node.is_nested_int()


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


def model_of_view(view: torch.Tensor) -> tuple[torch.Tensor, list[Any], list[torch.Tensor]]:
    """A view made by the same ops as `view`, of a base without memory, and the numbers and tensors that these ops take.

    Raises:
        RuntimeError: an op takes another wrapper, which a later call does not have.
    """
    numbers: list[Any] = []
    tensors: list[torch.Tensor] = []

    def fixed(number: Any) -> Any:
        numbers.append(_RaggedSize() if _is_ragged(number) else number)
        return _ragged_size(blank) if _is_ragged(number) else hints([number])[0]

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        if _stands_for_class(tensor):
            return tensor
        if is_wrapper_subclass(tensor):
            raise RuntimeError("an op of the view takes another wrapper, which a later call does not have")
        tensors.append(tensor)
        return _blank_like(tensor)

    with outside_of_modes(), torch.enable_grad(), tracked_views():
        blank = _blank_like(view._base)
        return view._view_func_unsafe(blank, fixed, noted), numbers, tensors


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
    model: torch.Tensor, base: torch.Tensor, numbers: Sequence[Any], tensors: Sequence[torch.Tensor] = ()
) -> torch.Tensor:
    """The view of `base` that `model` is of its base, by ops that take these numbers and tensors."""
    fresh = (_ragged_size(base) if isinstance(number, _RaggedSize) else number for number in numbers)
    others = iter(tensors)
    return model._view_func_unsafe(
        base, lambda _: next(fresh), lambda tensor: tensor if _stands_for_class(tensor) else next(others)
    )


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
