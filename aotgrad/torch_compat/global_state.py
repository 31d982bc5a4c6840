"""The global state that traces and compiled code depend on, and whether something observes the ops of a call."""

from __future__ import annotations

import contextlib
import functools
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

from aotgrad.torch_compat.contexts import (
    AutocastState,
    any_autocast_enabled,
    autocast_as,
    autocast_state,
    default_devices,
    function_modes,
    only_places_tensors,
)
from aotgrad.torch_compat.transforms import transform_is_open

FLAGS: dict[str, Callable[[], bool]] = {
    "inference mode": torch.is_inference_mode_enabled,
    "flash attention": torch._C._get_flash_sdp_enabled,
    "memory-efficient attention": torch._C._get_mem_efficient_sdp_enabled,
    "math attention": torch._C._get_math_sdp_enabled,
    "cudnn attention": torch._C._get_cudnn_sdp_enabled,
    "overrideable attention": torch._C._get_overrideable_sdp_enabled,
    "reductions of half precision in math attention": torch._C._get_math_sdp_allow_fp16_bf16_reduction,
    "cudnn": torch._C._get_cudnn_enabled,
    "benchmarks of cudnn": torch._C._get_cudnn_benchmark,
    "determinism of cudnn": torch._C._get_cudnn_deterministic,
    "mkldnn": torch._C._get_mkldnn_enabled,
    "determinism of mkldnn": torch._C._get_mkldnn_deterministic,
    "filled new memory": torch._C._get_deterministic_fill_uninitialized_memory,
    "accumulation in half precision": torch._C._get_cublas_allow_fp16_accumulation,
}
"""The flags of torch that decide what is traced, or how Inductor compiles it, and that torch's guard leaves out."""


def _reader_of_opt_einsum() -> Callable[[], tuple[Any, Any]]:
    """Reads `enabled` and `strategy` of `torch.backends.opt_einsum`, whose own attribute access takes microseconds.

    An assignment by a user is an attribute of the object that torch puts in place of the module.
    """
    assigned = vars(torch.backends.opt_einsum)
    module = vars(assigned.get("m", torch.backends.opt_einsum))
    return lambda: (assigned.get("enabled", module["enabled"]), assigned.get("strategy", module["strategy"]))


SETTINGS: dict[str, Callable[[], Any]] = {
    "order of attention kernels": torch._C._get_sdp_priority_order,
    "precision of convolutions": functools.partial(torch._C._get_fp32_precision_getter, "cuda", "conv"),
    "fast path of attention layers": torch.backends.mha.get_fastpath_enabled,
    "opt_einsum": _reader_of_opt_einsum(),
}
"""The same for settings with more than two values, or of Python."""

_PRECISIONS = [
    ("generic", "all"),
    *(("cuda", op) for op in ("all", "matmul", "conv", "rnn")),
    *(("mkldnn", op) for op in ("all", "matmul", "conv", "rnn")),
]
"""Where float32 may be computed in a shorter type: backends and ops."""

_function_mode_count = torch._C._len_torch_function_stack


class GlobalState:
    """A snapshot of the global state that a trace depends on; `check()` compares it with the current state.

    Grad mode, inference mode, autocast of every device, default dtype and device, determinism, attention kernels, ...
    """

    def __init__(self) -> None:
        from torch._C._dynamo.guards import GlobalStateGuard

        self.native = GlobalStateGuard()
        self.flags = self.read_flags()
        self.text = self.describe()

    def check(self) -> bool:
        return self.native.check() and self.read_flags() == self.flags

    def conditions(self, global_flags: Callable[[], int] | None) -> tuple[dict[str, Any], list[str]]:
        """`check` as conditions, and the names in them.

        `global_flags` reads all flags of `read_flags` in one call, a bit for each, and one more for a function mode.
        """
        flags, settings, devices = self.flags
        if devices != 0:  # a function mode was active
            return {"state_holds": self.check}, ["state_holds()"]
        names: dict[str, Any] = {"native_state": self.native.check}
        if global_flags is None:
            names |= {f"flag_{k}": read for k, read in enumerate(_FLAG_READERS)} | {"function_modes": _function_mode_count}
            conditions = [f"flag_{k}()" if flag else f"not flag_{k}()" for k, flag in enumerate(flags)]
            conditions.append("not function_modes()")
        else:
            names["flags"] = global_flags
            conditions = [f"flags() == {sum(flag << k for k, flag in enumerate(flags))}"]
        for k, (read, value) in enumerate(zip(_SETTING_READERS, settings, strict=True)):
            names |= {f"setting_{k}": read, f"expected_{k}": value}
            conditions.append(f"setting_{k}() == expected_{k}")
        return names, ["native_state()", *conditions]

    def in_plain_calls(self, global_flags: Callable[[], int] | None) -> tuple[dict[str, Any], list[str]]:
        """The same, but false if forward-mode AD or a function mode observes the call.

        With the keys that `TensorGuard` compares, this covers all of `ops_are_observed`.
        """
        names, conditions = self.conditions(global_flags)
        if self.flags[-1]:
            return names, ["False"]
        return {**names, "forward_mode": forward_ad}, [*conditions, "forward_mode._current_level < 0"]

    @staticmethod
    def read_flags() -> tuple[list[bool], list[Any], Any]:
        """`FLAGS`, `SETTINGS`, and the default devices."""
        return [read() for read in _FLAG_READERS], _settings(), _function_mode_count() and default_devices()

    @staticmethod
    def describe() -> str:
        """The settings that users commonly change, in words."""
        modes = ["grad" if torch.is_grad_enabled() else "no grad"]
        modes += ["inference"] if torch.is_inference_mode_enabled() else []
        modes += ["autocast"] if any_autocast_enabled() else []
        modes += ["deterministic"] if torch.are_deterministic_algorithms_enabled() else []
        return ", ".join([*modes, f"default dtype {torch.get_default_dtype()}", *default_devices()])

    def reason(self) -> str:
        """What differs from the snapshot; empty if nothing does."""
        native = [] if self.native.check() else [str(self.native.reason()).strip()]
        changed = [
            name
            for names, before, now in zip((FLAGS, SETTINGS), self.flags, self.read_flags(), strict=False)
            for name, was, value in zip(names, before, now, strict=True)
            if was != value
        ]
        devices = ["default device"] if self.flags[-1] != self.read_flags()[-1] else []
        return ", ".join([*native, *changed, *devices])


_FLAG_READERS, _SETTING_READERS = [*FLAGS.values()], [*SETTINGS.values()]


def _settings() -> list[Any]:
    return [read() for read in _SETTING_READERS]


@dataclass(frozen=True)
class OpSettings:
    """What decides which dtypes and devices ops get, and may differ in a backward.

    Attributes:
        autocast: its state for each device type.
        dtype: the default dtype.
        devices: the default devices, the innermost last.
    """

    autocast: AutocastState
    dtype: torch.dtype
    devices: tuple[str, ...]

    @classmethod
    def now(cls) -> OpSettings:
        return cls(autocast_state(), torch.get_default_dtype(), default_devices() if _function_mode_count() else ())

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside, ops run with these settings."""
        now = self.now()
        with contextlib.ExitStack() as stack:
            if self.dtype != now.dtype:
                stack.callback(torch.set_default_dtype, now.dtype)
                torch.set_default_dtype(self.dtype)
            if self.devices != now.devices:
                stack.enter_context(torch.device(self.devices[-1] if self.devices else "cpu"))
            stack.enter_context(autocast_as(self.autocast))
            yield


def ops_are_observed(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether something observes every op of this call: a trace, a user's mode, a transform, forward-mode AD."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or transform_is_open()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
        or (torch._C._len_torch_function_stack() and not all(map(only_places_tensors, function_modes())))
        or not {FunctionalTensor, FakeTensor}.isdisjoint(map(type, tensors))
    )


def global_settings() -> tuple:
    """The global state that traces and compiled code depend on, in a form that other processes understand."""
    products = torch.backends.cuda.matmul
    flags, settings, devices = GlobalState.read_flags()
    return (
        (torch.is_grad_enabled(), str(torch.get_default_dtype()), devices or ()),
        tuple((device, on, str(dtype)) for device, on, dtype in autocast_state()),
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        (tuple(flags), str(settings)),
        tuple(torch._C._get_fp32_precision_getter(*place) for place in _PRECISIONS),
        (torch.backends.mkldnn.is_available(), torch.get_num_threads(), torch.is_autocast_cache_enabled()),
        (products.allow_fp16_reduced_precision_reduction, products.allow_bf16_reduced_precision_reduction),
    )


def torch_build() -> tuple[str, ...]:
    """The version of torch, the machine, and its GPUs if they are in use: to ask for these would initialize CUDA."""
    return (*_build(), *(_gpus() if torch.cuda.is_initialized() else ()))


@functools.cache
def _gpus() -> tuple[str, ...]:
    return tuple(str(torch.cuda.get_device_properties(k)) for k in range(torch.cuda.device_count()))


@functools.cache
def _build() -> tuple[str, ...]:
    build = (str(torch.__version__), str(torch.version.git_version), torch.backends.cpu.get_cpu_capability())
    return (*build, platform.machine(), platform.python_version(), *_processor())


def _processor() -> list[str]:
    """The processor's features, as far as the system tells them."""
    try:
        with open("/proc/cpuinfo") as file:
            return sorted({line.strip() for line in file if line.startswith(("flags", "Features", "model name"))})
    except OSError:
        return [platform.processor()]
