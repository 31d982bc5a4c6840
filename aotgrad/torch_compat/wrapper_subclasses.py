"""Subclasses of tensors that wrap other tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, mb_unwrap_functional_tensor
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from aotgrad.torch_compat.functional_tensors import same_functional
from aotgrad.torch_compat.shapes import hints

_KNOWN = frozenset((torch.Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor))


def is_wrapper_subclass(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a subclass that `__tensor_flatten__` takes apart, and no tensor of a trace."""
    return is_traceable_wrapper_subclass(tensor) and not isinstance(tensor, FunctionalTensor)


def is_device_mesh(value: Any) -> bool:
    """Whether a value is a `DeviceMesh`, which Dynamo passes to graphs as it is."""
    return torch.distributed.is_available() and isinstance(value, torch.distributed.device_mesh.DeviceMesh)


def outside_of_modes() -> Any:
    """Inside, no mode sees an op."""
    return _disable_current_modes()


def flattened(wrapper: Any) -> tuple[Sequence[str], Any]:
    """The names of the attributes that a wrapper consists of, and what else it needs."""
    return wrapper.__tensor_flatten__()


def another_object(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor with the same memory, unrelated for autograd; in a trace, with the same value."""
    return same_functional(tensor) if isinstance(tensor, FunctionalTensor) else tensor.detach()


def remember_ragged_size(parts: Sequence[torch.Tensor], size: Sequence[Any]) -> None:
    """Tell the offsets of a nested tensor, or its lengths, in a trace, which of its sizes belongs to them."""
    ragged = next((number for number in size if isinstance(number, torch.SymInt) and number.node.is_nested_int()), None)
    for part in parts[1:]:
        fake: Any = mb_unwrap_functional_tensor(part)
        if ragged is not None and isinstance(fake, FakeTensor) and fake.nested_int_memo is None:
            fake.nested_int_memo = ragged


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
    with torch.no_grad(), torch._C._DisableTorchDispatch():
        alias = wrapper.detach()
        if not torch._has_compatible_shallow_copy_type(alias, part):
            return part.detach()
        alias.data = part
    return alias


def model_of_view(view: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
    """A view made by the same ops as `view`, of a base without memory, and the numbers that these ops take."""
    base, numbers = view._base, []

    def fixed(number: Any) -> int:
        numbers.append(number)
        return hints([number])[0]

    with outside_of_modes(), torch.enable_grad(), tracked_views():
        blank = torch.empty_strided(hints(base.size()), hints(base.stride()), dtype=base.dtype, device="meta")
        return view._view_func_unsafe(blank, fixed), numbers


def replayed_view(model: torch.Tensor, base: torch.Tensor, numbers: Sequence[Any]) -> torch.Tensor:
    """The view of `base` that `model` is of its base, by ops that take these numbers."""
    fresh = iter(numbers)
    return model._view_func_unsafe(base, lambda _: next(fresh))


def tracked_views() -> Any:
    """Inside, autograd notes the ops that make a view: some subclasses have no `as_strided`."""
    return torch.autograd._force_original_view_tracking(True)


def dispatches_itself(classes: Iterable[type]) -> bool:
    """Whether one of the classes of an op's arguments has a `__torch_dispatch__` of its own, which comes first."""
    return not _KNOWN.issuperset(classes)
