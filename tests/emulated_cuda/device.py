"""Gives a torch that was built without CUDA two emulated devices.

    load()                              before torch is imported
    with capturing(): ...               as in the capture of a CUDA graph: reading the state of a generator raises

The C++ library has the memory, the generators and the operators (`library/`). What `torch.cuda` takes from the parts of
torch that were not built is set here.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.emulated_cuda import build

DEVICES = 2
CAPABILITY = (9, 0)
SECONDS_TO_LEAVE = 0.1
TORCH_LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch.so")


def load() -> None:
    """Load the library, import torch, and complete `torch.cuda`.

    Raises:
        RuntimeError: torch was imported before, was built with CUDA, or the library cannot be built.
    """
    if "torch" in sys.modules:
        raise RuntimeError("torch is imported already; the emulated device must be loaded before it")
    found = library()
    import torch

    if torch.version.cuda is not None:
        raise RuntimeError("this torch was built with CUDA; the emulated device needs one without")
    for name, function in bindings(found).items():
        setattr(torch._C, name, function)
    torch.cuda._cudart = found  # only whether there is one
    torch.backends.cudnn.enabled = False
    for name, function in cuda_functions(found).items():
        setattr(torch.cuda, name, function)
    for name, function in storage_methods(found).items():
        setattr(torch.UntypedStorage, name, function)
    atexit.register(stop_threads, found)


def stop_threads(library: ctypes.CDLL) -> None:
    """End the threads of autograd. Each says that it ends a little before it has left the interpreter."""
    library.emulated_stop_threads()
    time.sleep(SECONDS_TO_LEAVE)


@functools.cache
def library() -> ctypes.CDLL:
    """The C++ library, with torch's own libraries loaded for it."""
    path = build.library_path()
    mode = os.RTLD_NOW | os.RTLD_GLOBAL
    for name in TORCH_LIBRARIES:
        ctypes.CDLL(str(build.torch_folder() / "lib" / name), mode=mode)
    found = ctypes.CDLL(str(path), mode=os.RTLD_NOW)
    found.emulated_allocated.restype = found.emulated_peak.restype = ctypes.c_int64
    found.emulated_is_capturing.restype = ctypes.c_bool
    return found


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Forbid what the capture of a CUDA graph forbids: to read, set or seed the state of a generator."""
    library().emulated_set_capturing(True)
    try:
        yield
    finally:
        library().emulated_set_capturing(False)


def initialize(library: ctypes.CDLL) -> None:
    """Give `torch.cuda` the default generators, as it happens when CUDA is first used."""
    import torch

    library.emulated_hand_out_default_generators(True)
    try:
        torch.cuda.default_generators = tuple(torch.Generator(device=f"cuda:{index}") for index in range(DEVICES))
    finally:
        library.emulated_hand_out_default_generators(False)


@dataclass(frozen=True)
class Properties:
    """What `torch.cuda.get_device_properties` returns: the numbers of an H100."""

    name: str = "Emulated"
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    total_memory: int = 1 << 34
    multi_processor_count: int = 132
    warp_size: int = 32
    gcnArchName: str = ""
    regs_per_multiprocessor: int = 65536
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 232448
    shared_memory_per_multiprocessor: int = 233472
    L2_cache_size: int = 60 << 20
    uuid: str = "emulated"
    is_integrated: int = 0


def python_function(function: Any) -> Callable:
    """A function of its own: Dynamo keeps a table of torch's functions, and those of ctypes cannot be hashed."""
    return lambda *args: function(*args)


def bindings(library: ctypes.CDLL) -> Mapping[str, Callable]:
    """The functions of `torch._C` that a torch without CUDA lacks."""
    return {
        "_cuda_exchangeDevice": python_function(library.emulated_exchange_device),
        "_cuda_getCurrentRawStream": lambda device: 0,
        "_cuda_getDevice": python_function(library.emulated_current_device),
        "_cuda_getDeviceCount": lambda: DEVICES,
        "_cuda_init": lambda: initialize(library),
        "_cuda_maybeExchangeDevice": python_function(library.emulated_exchange_device),
        "_cuda_setDevice": python_function(library.emulated_exchange_device),
        "_cuda_synchronize": lambda: None,
    }


def cuda_functions(library: ctypes.CDLL) -> Mapping[str, Any]:
    """The names of `torch.cuda` that ask a GPU, or functions that were not built."""
    import torch
    from torch.cuda._utils import _get_device_index

    def of_device(function: Callable[[int], int]) -> Callable:
        return lambda device=None: function(_get_device_index(device, optional=True))

    return {
        "Event": lambda enable_timing=False, **ignored: torch.Event("cuda", enable_timing=enable_timing),
        "_device_count_nvml": lambda: DEVICES,
        "_exchange_device": torch._C._cuda_exchangeDevice,
        "_is_compiled": lambda: True,
        "_maybe_exchange_device": torch._C._cuda_maybeExchangeDevice,
        "current_stream": lambda device=None: torch.accelerator.current_stream(device),
        "device_count": lambda: DEVICES,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_name": lambda device=None: Properties.name,
        "get_device_properties": lambda device=None: Properties(),
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": python_function(library.emulated_is_capturing),
        "max_memory_allocated": of_device(library.emulated_peak),
        "memory_allocated": of_device(library.emulated_allocated),
        "reset_peak_memory_stats": of_device(library.emulated_reset_peak),
        "synchronize": lambda device=None: None,
    }


def storage_methods(library: ctypes.CDLL) -> Mapping[str, Any]:
    """What a storage does in another way, where it is on a device."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    usual_new, usual_resize = torch.UntypedStorage.__new__, torch.UntypedStorage.resize_

    def new(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return usual_new(cls, *args, device=device, **kwargs)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return torch.empty(*args, dtype=torch.uint8, device=device).untyped_storage()

    def resize(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return usual_resize(self, size)
        self.data_ptr()  # raises if the tensor is traced
        library.emulated_resize_storage(ctypes.c_void_p(self._cdata), ctypes.c_size_t(size))
        return self

    return {"__new__": staticmethod(new), "resize_": resize}
