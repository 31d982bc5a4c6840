"""Ops that send a value to the memory of the host and fetch it, and how long the link takes for that.

    forward     host = aotgrad.offload(x); ...; host = aotgrad.wait(host, x)     saves host; x is free after the wait
    backward    copy = aotgrad.reload(host, device); ...; x = aotgrad.wait(copy)

`offload` and `reload` start a copy; nothing but a wait reads what they return. `wait` returns its first argument as soon as
the copy has arrived, and keeps the source of the copy alive until then. The copies of a device have a stream of their own:
they run beside its computations and one after another. On a CPU there is no link: each copy is made at once, in other
memory.

Limits: tensors without gaps, on a CPU or an accelerator. The figures of a link are measured for the GPUs of the table, and
usual ones for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.fx as fx

from aotgrad import torch_compat
from aotgrad.graph.link_schedule import Link

NAMESPACE = torch.library.Library("aotgrad", "DEF")
ANY_LAYOUT = (torch.Tag.flexible_layout,)

NAMESPACE.define("offload(Tensor x) -> Tensor", tags=ANY_LAYOUT)
NAMESPACE.define("reload(Tensor host, Device device) -> Tensor", tags=ANY_LAYOUT)
NAMESPACE.define("wait(Tensor(a) x, Tensor? source=None) -> Tensor(a)", tags=ANY_LAYOUT)


@dataclass(frozen=True)
class DeviceSpeed:
    """How fast a device computes, and its link to the host. `bytes_per_second` are of its own memory."""

    bytes_per_second: float
    flops_per_second: float
    link: Link


SPEEDS = {
    "cpu": DeviceSpeed(1e10, 1e11, Link(bandwidth=2.5e9, latency=1e-6)),
    "cuda": DeviceSpeed(1.5e12, 1.5e14, Link(bandwidth=2.5e10, latency=2e-5)),
}
"""By type of the device. A CPU stands for a device; each of its numbers is about a hundredth of the device's."""

MEASURED = {
    (9, 0): DeviceSpeed(3.9e12, 7.5e14, Link(bandwidth=5.5e10, latency=2.6e-5)),
}
"""By compute capability, where it was measured: `scripts/cuda_check.sh --part 3 --only link`."""

_streams: dict[torch.device, torch.Stream] = {}
_arrivals: dict[int, torch.Event] = {}
"""The events of copies that nothing has waited for yet, by the address of the copy."""


def offload(x: torch.Tensor) -> torch.Tensor:
    """Start a copy of a tensor to the host."""
    if x.device.type == "cpu":
        return x.clone()
    return _copied(x, _like_on_host(x, pin_memory=True), x.device)


def reload(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Start a copy of a tensor on the host to a device."""
    if device.type == "cpu":
        return host.clone()
    return _copied(host, _like_on(host, device), device)


def wait(x: torch.Tensor, source: torch.Tensor | None = None) -> torch.Tensor:
    """The copy `x`, once it has arrived: the device waits, the program does not.

    A hook on saved tensors may read the copy on the host at once, so with such hooks the program waits, too.
    """
    arrival = _arrivals.pop(x.data_ptr(), None)
    if arrival is not None:
        torch.accelerator.current_stream(arrival.device).wait_event(arrival)
        if x.device.type == "cpu" and torch_compat.has_saved_tensor_hooks():
            arrival.synchronize()
    return x


def _copied(source: torch.Tensor, target: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`target`, into which the stream for copies copies `source` after all that the device was asked for so far."""
    if (stream := _streams.get(device)) is None:
        stream = _streams.setdefault(device, torch.Stream(device))
    stream.wait_stream(torch.accelerator.current_stream(device))
    with stream:
        target.copy_(source, non_blocking=True)
    _arrivals[target.data_ptr()] = stream.record_event()
    return target


def _like_on_host(x: torch.Tensor, pin_memory: bool = False) -> torch.Tensor:
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="cpu", pin_memory=pin_memory)


def _like_on(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(host.size(), host.stride(), dtype=host.dtype, device=device)


for _op in (offload, reload, wait):
    NAMESPACE.impl(_op.__name__, _op, "CompositeExplicitAutograd")

torch.library.register_fake("aotgrad::offload", _like_on_host)
torch.library.register_fake("aotgrad::reload", _like_on)
torch.library.register_fake("aotgrad::wait", lambda x, source=None: x)

OFFLOAD, RELOAD, WAIT = (getattr(torch.ops.aotgrad, _op.__name__).default for _op in (offload, reload, wait))


@WAIT.py_functionalize_impl
def functional_wait(mode: Any, x: torch.Tensor, source: torch.Tensor | None = None) -> Any:
    """`wait` in a trace, which a batched backward has: torch does not functionalize custom ops that return an argument."""
    given = mode.unwrap_tensors((x, source))
    with mode.redispatch_to_next():
        return mode.wrap_tensors(WAIT(*given))


def speed_of(node: fx.Node) -> DeviceSpeed:
    """The speed of the device that a node, which starts a copy, sends a value from or to."""
    on_device = node.all_input_nodes[0] if node.target is OFFLOAD else node
    return speed_on(on_device.meta["val"].device)


def speed_on(device: torch.device) -> DeviceSpeed:
    """The speed of a device; a GPU that was not measured has the usual one.

    Raises:
        KeyError: no speed is known for the type of the device.
    """
    usual = SPEEDS[device.type]
    if device.type != "cuda" or not torch.cuda.is_available():
        return usual
    return MEASURED.get(torch.cuda.get_device_capability(device), usual)
