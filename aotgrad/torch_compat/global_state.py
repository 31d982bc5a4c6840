"""The global state that traces and compiled code depend on, and whether something observes the ops of a call."""

from __future__ import annotations

import contextlib
import functools
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
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


def _module_settings() -> dict[str, Callable[[], Any]]:
    settings: dict[str, Callable[[], Any]] = {
        "fast path of attention layers": functools.partial(vars(torch.backends.mha).__getitem__, "_is_fastpath_enabled"),
    }
    if torch.backends.opt_einsum.is_available():
        # Its own attribute access takes microseconds. An assignment by a user is an attribute of the object that torch
        # puts in place of the module.
        assigned = vars(torch.backends.opt_einsum)
        module = vars(assigned.get("m", torch.backends.opt_einsum))
        settings["opt_einsum"] = lambda: tuple(assigned.get(name, module[name]) for name in ("enabled", "strategy"))
    return settings


MODULE_SETTINGS = _module_settings()
"""Those of `SETTINGS` that are variables of Python modules."""

SETTINGS: dict[str, Callable[[], Any]] = {
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
    "order of attention kernels": torch._C._get_sdp_priority_order,
    "precision of convolutions": functools.partial(torch._C._get_fp32_precision_getter, "cuda", "conv"),
    **MODULE_SETTINGS,
}
"""The settings of torch that decide what is traced, or how Inductor compiles it, and that torch's guard leaves out."""

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

    def __init__(self, settings_number: Callable[[], int] | None = None) -> None:
        """`settings_number` reads all settings but those of modules, and the number of function modes, in one call.

        Its result is another number if one of them is another.
        """
        from torch._C._dynamo.guards import GlobalStateGuard

        self.native = GlobalStateGuard()
        self.settings, self.devices = self.read_settings()
        self.settings_number = settings_number
        self.number = None if settings_number is None else settings_number()
        self.text = self.describe()
        self.described = named_settings()

    def check(self) -> bool:
        return self.native.check() and self.read_settings() == (self.settings, self.devices)

    @functools.cached_property
    def conditions(self) -> tuple[dict[str, Any], list[str]]:
        """`check` as conditions, and the names in them."""
        if self.devices is not None:
            return {"state_holds": self.check}, ["state_holds()"]
        names: dict[str, Any] = {"native_state": self.native.check}
        if self.settings_number is None:
            conditions, read = ["not function_modes()"], SETTINGS
            names["function_modes"] = _function_mode_count
        else:
            conditions, read = [f"settings_number() == {self.number}"], MODULE_SETTINGS
            names["settings_number"] = self.settings_number
        for k, (name, value) in enumerate(zip(SETTINGS, self.settings, strict=True)):
            if name in read:
                names |= {f"setting_{k}": SETTINGS[name], f"expected_{k}": value}
                is_flag = isinstance(value, bool)
                conditions.append(f"{'' if value else 'not '}setting_{k}()" if is_flag else f"setting_{k}() == expected_{k}")
        return names, ["native_state()", *conditions]

    @functools.cached_property
    def conditions_of_plain_calls(self) -> tuple[dict[str, Any], list[str]]:
        """The same, but false if forward-mode AD or a function mode observes the call.

        With the keys that `TensorGuard` compares, this covers all of `ops_are_observed`.
        """
        names, conditions = self.conditions
        if self.devices is not None:
            return names, ["False"]
        return {**names, "forward_mode": forward_ad}, [*conditions, "forward_mode._current_level < 0"]

    @staticmethod
    def read_settings() -> tuple[list[Any], tuple[str, ...] | None]:
        """The values of `SETTINGS`, and the default devices if a function mode is active."""
        return [read() for read in _SETTING_READERS], default_devices() if _function_mode_count() else None

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
        settings, devices = self.read_settings()
        native = [] if self.native.check() else [str(self.native.reason()).strip()]
        before_and_now = zip(SETTINGS, self.settings, settings, strict=True)
        changed = [name for name, before, now in before_and_now if before != now]
        return ", ".join([*native, *changed, *(["default device"] if devices != self.devices else [])])


_SETTING_READERS = [*SETTINGS.values()]


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

    def active(self) -> AbstractContextManager[None]:
        """Inside, ops run with these settings."""
        now = self.now()
        return contextlib.nullcontext() if self == now else self._in_place_of(now)

    @contextlib.contextmanager
    def _in_place_of(self, now: OpSettings) -> Iterator[None]:
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
    settings, devices = GlobalState.read_settings()
    return (
        (torch.is_grad_enabled(), str(torch.get_default_dtype()), devices or ()),
        tuple((device, on, str(dtype)) for device, on, dtype in autocast_state()),
        (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        tuple(map(str, settings)),
        tuple(torch._C._get_fp32_precision_getter(*place) for place in _PRECISIONS),
        (torch.backends.mkldnn.is_available(), torch.get_num_threads(), torch.is_autocast_cache_enabled()),
        (products.allow_fp16_reduced_precision_reduction, products.allow_bf16_reduced_precision_reduction),
    )


SETTING_GROUPS = (
    "grad mode, default dtype and device",
    "autocast",
    "deterministic algorithms",
    "settings of torch.backends",
    "precision of float32",
    "mkldnn",
    "reductions in half precision",
)
"""What the entries of `global_settings` are."""


def named_settings() -> dict[str, str]:
    """`global_settings` as text by name, without the number of threads."""
    *groups, (has_mkldnn, _, caches), reductions = global_settings()
    values = map(str, (*groups, (has_mkldnn, caches), reductions))
    return dict(zip(SETTING_GROUPS, values, strict=True))


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


@functools.cache
def _processor() -> list[str]:
    """The processor's features, as far as the system tells them."""
    told = ("flags", "Features", "model name", "vendor_id")
    try:
        with open("/proc/cpuinfo") as file:
            return sorted({line.strip() for line in file if line.startswith(told)})
    except OSError:
        return [platform.processor()]


def math_library_is_slow() -> bool:
    """Whether eager computes functions such as `tanh` by MKL on a processor of AMD's, for which it is not made."""
    return torch.backends.mkl.is_available() and any("AMD" in line for line in _processor())
