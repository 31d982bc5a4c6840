"""Runs the Triton kernels that Inductor makes for the emulated device in Triton's interpreter.

    interpret_kernels()                 after the device is loaded; needs the package triton
    with launches() as names: ...       the kernels that ran

Torch itself interprets kernels where TRITON_INTERPRET is 1. What is added: a driver that names a GPU, the functions of
CUDA's mathematical library, and the check of a GPU that memory is as aligned as the kernel was compiled for.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.emulated_cuda.device import CAPABILITY, Properties

ALIGNMENT = 16
"""Bytes; what a kernel may assume of an argument's address."""

RENAMED = {"fast_tanhf": "tanh", "fabs": "abs", "nearbyint": "round", "rint": "round"}
"""Functions of CUDA's library with another name in torch."""

_launches: list[list[str]] = []


def interpret_kernels() -> None:
    """Let Inductor use Triton for the emulated device, from now on in this process."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
    import torch
    import triton
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    triton.runtime.driver.set_active(Driver())
    triton_helpers.set_driver_to_gpu = lambda: None  # kernels would set the real one
    torch._C._dynamo.guards._empty_strided_cuda = empty_strided
    for name, _ in inspect.getmembers(libdevice, inspect.isfunction):
        if function := getattr(torch, RENAMED.get(name, name), None):
            setattr(libdevice, name, interpreted(function))
    interpreter._convert_float = rounded(interpreter._convert_float)
    CachingAutotuner.run = with_checks(CachingAutotuner.run)


def empty_strided(sizes: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
    """How Inductor's code allocates a buffer."""
    import torch

    return torch.empty_strided(sizes, strides, dtype=dtype, device="cuda")


class Driver:
    """What Triton and Inductor ask about the GPU."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = CAPABILITY
        return GPUTarget("cuda", 10 * major + minor, Properties.warp_size)

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", torch.cuda.current_device())

    def get_current_device(self) -> int:
        return self.get_active_torch_device().index

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def is_active(self) -> bool:
        return True


def interpreted(function: Callable) -> Callable:
    """A function of torch as one of the interpreter's tensors, which hold NumPy arrays."""

    @functools.wraps(function)
    def call(*args: Any, **ignored: Any) -> Any:
        import numpy as np
        import torch
        from triton import language as tl
        from triton.runtime.interpreter import TensorHandle

        tensors = tl.broadcast(*args) if len(args) == 2 else args
        result = function(*(torch.from_numpy(np.require(each.handle.data, requirements="W")) for each in tensors)).numpy()
        dtype = tl.int1 if result.dtype == bool else tensors[0].dtype
        return tl.tensor(TensorHandle(result, dtype), tl.block_type(dtype, list(result.shape)))

    return call


def rounded(convert: Callable) -> Callable:
    """Conversions to shorter floats, to the nearest one as on a GPU; the interpreter cuts the digits off."""
    from triton._C.libtriton import ir

    def call(values: Any, dtype: Any, to: Any, rounding: Any) -> Any:
        return convert(values, dtype, to, ir.ROUNDING_MODE.RTNE if rounding is None else rounding)

    return call


def with_checks(run: Callable) -> Callable:
    """The launch of a kernel, after its arguments were checked."""
    import numpy as np

    @functools.wraps(run)
    def checked(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        check_devices(kernel, args)
        check_alignment(kernel, args)
        for names in _launches:
            names.append(kernel.fn.__name__)
        with np.errstate(all="ignore"):  # a GPU does not warn of infinities
            return run(kernel, *args, **kwargs)

    return checked


def check_devices(kernel: Any, args: Sequence[Any]) -> None:
    """As a GPU does.

    Raises:
        RuntimeError: an argument is in the memory of the host.
    """
    import torch

    for position, argument in enumerate(args):
        if isinstance(argument, torch.Tensor) and argument.device.type != "cuda":
            name = list(kernel.triton_meta["signature"])[position]
            raise RuntimeError(f"CUDA driver error: invalid argument ({name} of {kernel.fn.__name__})")


def check_alignment(kernel: Any, args: Sequence[Any]) -> None:
    """As a GPU does.

    Raises:
        RuntimeError: an argument is not aligned as the kernel was compiled for.
    """
    import torch

    (attributes,) = kernel.triton_meta["configs"]
    for (position,), facts in attributes.items():
        argument = args[position] if position < len(args) else None
        aligned = ["tt.divisibility", ALIGNMENT] in facts
        if aligned and isinstance(argument, torch.Tensor) and argument.data_ptr() % ALIGNMENT:
            name = list(kernel.triton_meta["signature"])[position]
            raise RuntimeError(f"CUDA error: misaligned address ({name} of {kernel.fn.__name__})")


@contextlib.contextmanager
def launches() -> Iterator[list[str]]:
    """The names of the kernels that are launched, in order."""
    names: list[str] = []
    _launches.append(names)
    try:
        yield names
    finally:
        _launches.remove(names)
