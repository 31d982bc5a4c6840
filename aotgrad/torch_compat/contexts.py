"""Contexts that ops run in: below autograd, under another autocast, outside of inference mode, in function modes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._device import DeviceContext

below_autograd = torch._C._AutoDispatchBelowADInplaceOrView
"""The context of compiled graphs: ops skip autograd, view tracking and version tracking."""

_AUTOGRAD_KEYS = (
    *(torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.AutogradOther),
    *(torch._C.DispatchKey.AutogradNestedTensor, torch._C.DispatchKey.ADInplaceOrView),
)


@contextlib.contextmanager
def above_autograd() -> Iterator[None]:
    """Inside, autograd records ops, as outside of `below_autograd`."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD_KEYS:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield


_free_guards: list[Any] = []


def run_below_autograd(function: Callable[[Any], Any], values: Any) -> Any:
    """`function(values)` in `below_autograd()`. Guards are pooled, because creating one takes long."""
    try:
        guard = _free_guards.pop()
    except IndexError:
        guard = below_autograd()
    with guard:
        result = function(values)
    _free_guards.append(guard)
    return result


disable_autocast = torch._C._DisableAutocast
"""Context that disables autocast for every device at once."""


unobserved = torch._C.DisableTorchFunction
"""Context that disables `__torch_function__` of subclasses and modes."""

without_own_rules = torch._C.DisableTorchFunctionSubclass
"""Context that disables `__torch_function__` of subclasses."""


@contextlib.contextmanager
def normal_mode() -> Iterator[None]:
    """Inside, inference mode is reduced to `no_grad`: new tensors have version counters."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def as_inference(tensor: torch.Tensor) -> torch.Tensor:
    """An inference tensor with the same memory."""
    with torch.inference_mode():
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor)


def default_devices() -> tuple[str, ...]:
    """The devices of `torch.set_default_device` and of open `with torch.device(...)` blocks, outermost first."""
    return tuple(str(mode.device) for mode in function_modes() if isinstance(mode, DeviceContext))


def function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(k) for k in range(torch._C._len_torch_function_stack())]


def only_places_tensors(mode: Any) -> bool:
    """Whether a function mode is a default device that a trace can use; on the meta device, constants cannot be traced."""
    return isinstance(mode, DeviceContext) and mode.device.type != "meta"


def has_own_function_rules(kind: type[torch.Tensor]) -> bool:
    """Whether a tensor class defines `__torch_function__`."""
    rules = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    return rules not in (torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)


_AUTOCAST_DEVICES = ("cpu", "cuda")
AutocastState = tuple[tuple[str, bool, torch.dtype], ...]
"""For each device type: whether autocast is on, and its dtype."""


def autocast_state() -> AutocastState:
    """The state of autocast; it is off for devices not listed."""
    if not any_autocast_enabled():
        return ()
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _AUTOCAST_DEVICES)


@contextlib.contextmanager
def autocast_as(state: AutocastState) -> Iterator[None]:
    """Inside, autocast is as in `state`, and off for devices not listed."""
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
    """Whether autocast caches the cast of a tensor, so that the gradients of all uses are summed before the cast back."""
    return tensor.requires_grad and tensor.is_leaf and not tensor._is_view()


def any_autocast_enabled() -> bool:
    """Whether autocast is on for any available device type."""
    return torch._C._is_any_autocast_enabled()


@contextlib.contextmanager
def bare_evaluation() -> Iterator[None]:
    """Inside, ops run for real and as written, whatever modes, autocast or grad mode surround the compilation."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), outside_of_fake_kernels(), normal_mode(), torch.no_grad(), disable_autocast():
        yield


@contextlib.contextmanager
def outside_of_fake_kernels() -> Iterator[None]:
    """Inside, new tensors have memory, also while an op computes the metadata of a fake result."""
    with torch._C._PreserveDispatchKeyGuard():
        torch._C._set_meta_in_tls_dispatch_include(False)
        yield


@contextlib.contextmanager
def no_jit_autocast() -> Iterator[None]:
    """Disable TorchScript's own autocast: scripted graphs contain their casts already."""
    before = torch._C._jit_set_autocast_mode(False)
    try:
        yield
    finally:
        torch._C._jit_set_autocast_mode(before)


def function_modes_are_defaults() -> bool:
    """Whether the only active modes are default devices."""
    return not torch._C._len_torch_dispatch_stack() and all(map(only_places_tensors, function_modes()))
