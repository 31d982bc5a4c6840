"""Contexts in which ops run: below autograd, with another autocast, out of inference mode, in function modes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._device import DeviceContext

below_autograd = torch._C._AutoDispatchBelowADInplaceOrView
"""Context in which ops skip autograd, view and version tracking: what a compiled graph runs under."""

_free_guards: list[Any] = []


def run_below_autograd(function: Callable[[Any], Any], values: Any) -> Any:
    """`function(values)` in `below_autograd()`: in one that nobody uses now, since it takes long to make one."""
    try:
        guard = _free_guards.pop()
    except IndexError:
        guard = below_autograd()
    with guard:
        result = function(values)
    _free_guards.append(guard)
    return result


disable_autocast = torch._C._DisableAutocast
"""Context in which autocast is off for every device at once."""


unobserved = torch._C.DisableTorchFunction
"""Context in which no `__torch_function__` runs, of subclasses or modes."""


@contextlib.contextmanager
def normal_mode() -> Iterator[None]:
    """Inside, an inference mode is only a `no_grad`: tensors that are made have version counters."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def as_inference(tensor: torch.Tensor) -> torch.Tensor:
    """An inference tensor that is the same memory."""
    with torch.inference_mode():
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor)


def default_devices() -> tuple[str, ...]:
    """The devices of `torch.set_default_device` and of `with torch.device(...)` blocks that are open, outermost first."""
    return tuple(str(mode.device) for mode in function_modes() if isinstance(mode, DeviceContext))


def function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(k) for k in range(torch._C._len_torch_function_stack())]


def only_places_tensors(mode: Any) -> bool:
    """Whether a function mode is a default device that a trace can use; on the meta device, constants cannot be traced."""
    return isinstance(mode, DeviceContext) and mode.device.type != "meta"


def has_own_function_rules(kind: type[torch.Tensor]) -> bool:
    """Whether a class of tensors defines what functions of torch do with it."""
    rules = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    return rules not in (torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)


_AUTOCAST_DEVICES = ("cpu", "cuda")
AutocastState = tuple[tuple[str, bool, torch.dtype], ...]
"""Device type, whether autocast is on for it, and its dtype."""


def autocast_state() -> AutocastState:
    """What autocast does now: nothing for devices that are not named."""
    if not any_autocast_enabled():
        return ()
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _AUTOCAST_DEVICES)


@contextlib.contextmanager
def autocast_as(state: AutocastState) -> Iterator[None]:
    """Autocast as in `state` inside, and nowhere else."""
    if state == autocast_state():
        yield
        return
    wanted = {device: (enabled, dtype) for device, enabled, dtype in state}
    with contextlib.ExitStack() as stack:
        for device in _AUTOCAST_DEVICES:
            enabled, dtype = wanted.get(device, (False, torch.get_autocast_dtype(device)))
            stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
        yield


def autocast_keeps(tensor: torch.Tensor) -> bool:
    """Whether autocast casts a tensor once, and adds up the gradients of all that use it before they are cast back."""
    return tensor.requires_grad and tensor.is_leaf and not tensor._is_view()


def any_autocast_enabled() -> bool:
    """Whether autocast is on for any device type that is there."""
    return torch._C._is_any_autocast_enabled()


@contextlib.contextmanager
def bare_evaluation() -> Iterator[None]:
    """Ops run for real and as they are written, whatever modes, autocast or grad mode surround the compilation."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), normal_mode(), torch.no_grad(), disable_autocast():
        yield


@contextlib.contextmanager
def no_jit_autocast() -> Iterator[None]:
    """TorchScript without autocast of its own: what is scripted has its casts already."""
    before = torch._C._jit_set_autocast_mode(False)
    try:
        yield
    finally:
        torch._C._jit_set_autocast_mode(before)


def function_modes_are_defaults() -> bool:
    """Whether no function mode is on but default devices, and no dispatch mode."""
    return not torch._C._len_torch_dispatch_stack() and all(map(only_places_tensors, function_modes()))
