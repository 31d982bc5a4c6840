"""The device that is checked: a real GPU, or the emulated one of `tests/emulated_cuda`, under the same name."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from case import Need

REPOSITORY = Path(__file__).resolve().parents[2]
EMULATED = "AOTGRAD_CUDA_CHECK_EMULATED"


def choose(emulated: bool) -> None:
    """Choose the device of this process and of those that it starts."""
    if emulated:
        os.environ[EMULATED] = "1"


def is_emulated() -> bool:
    """Whether the emulated device is chosen."""
    return EMULATED in os.environ


def load() -> None:
    """Make the device available. Must run before torch is imported."""
    if is_emulated() and "tests.emulated_cuda.device" not in sys.modules:
        assert "torch" not in sys.modules, "the emulated device is registered while torch is loaded"
        sys.path.insert(0, str(REPOSITORY))
        from tests.emulated_cuda import device as emulated

        emulated.load()


def register_backends() -> None:
    """Tell Dynamo aotgrad's backends, which an installed package does by its entry points."""
    import torch._dynamo

    from aotgrad.frontends import dynamo

    for name, compile in {"aotgrad": dynamo.inductor, "aotgrad_eager": dynamo.eager}.items():
        if name not in torch._dynamo.list_backends(exclude_tags=()):
            torch._dynamo.register_backend(compile, name=name)


@contextlib.contextmanager
def turn(alone: bool) -> Iterator[None]:
    """Inside, no other process measures; with `alone`, none compiles either. Cases that measure start side by side."""
    with open(Path(tempfile.gettempdir()) / f"aotgrad_cuda_check_{os.getuid()}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def missing() -> Iterator[Need]:
    """What this machine does not have."""
    import torch

    if is_emulated():
        yield Need.GPU
    if importlib.util.find_spec("triton") is None or is_emulated():
        yield Need.TRITON
    if torch.cuda.device_count() < 2:
        yield Need.TWO_DEVICES


def description() -> str:
    """The device, and the versions of what runs on it."""
    import torch

    device = "emulated CUDA" if is_emulated() else torch.cuda.get_device_name()
    return f"{device}, torch {torch.__version__}, Python {platform.python_version()}"
