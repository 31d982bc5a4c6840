"""The device of the tests: `AOTGRAD_TEST_DEVICE` is "cpu" (the default), "emulated" or "cuda".

    AOTGRAD_TEST_DEVICE=emulated python -m pytest tests/runtime

It becomes torch's default device, on which tests make their tensors. Importing this module loads the emulated device, so
it comes before torch.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.emulated_cuda.expected_failures import DEFECTS, GAPS, MACHINE_DEPENDENT, ORDER_DEPENDENT, reason_of

VARIABLE = "AOTGRAD_TEST_DEVICE"
TYPES = {"cpu": "cpu", "emulated": "cuda", "cuda": "cuda"}
"""The types of torch's devices, by the value of the variable."""

SUITES = ("conformance", "emulated_cuda", "models", "numerics", "runtime")
"""The folders of tests that run on any device; others are about the CPU, or about no device."""

TESTS = Path(__file__).parent


def chosen_device() -> str:
    """A key of `TYPES`.

    Raises:
        pytest.UsageError: the variable has another value.
    """
    found = os.environ.get(VARIABLE, "cpu")
    if found not in TYPES:
        raise pytest.UsageError(f"{VARIABLE} is {found!r}; it must be one of {', '.join(TYPES)}")
    return found


DEVICE = chosen_device()

HAS_TRITON = importlib.util.find_spec("triton") is not None

if DEVICE == "emulated":
    from tests.emulated_cuda import device, inductor

    device.load()
    if HAS_TRITON:
        inductor.interpret_kernels()

import torch  # noqa: E402  # only now

TYPE = TYPES[DEVICE]
"""The type of the device in torch."""


def use_device() -> None:
    """Make tensors on the device from now on, in this thread."""
    if DEVICE != "cpu" and torch.cuda.is_available():
        torch.set_default_device(TYPE)


def new_generator() -> torch.Generator:
    """A generator of the device."""
    return torch.Generator(TYPE)


def default_generator() -> torch.Generator:
    """The generator that random ops of the device draw from."""
    return torch.cuda.default_generators[torch.cuda.current_device()] if TYPE == "cuda" else torch.default_generator


def mark(items: Sequence[pytest.Item]) -> None:
    """Skip, with the reason, the tests that do not run on the device; mark those that fail on the emulated one."""
    for item in items:
        if reason := why_not(item):
            item.add_marker(pytest.mark.skip(reason=reason))
        elif DEVICE == "emulated" and (reason := why_it_fails(item)):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def why_not(item: pytest.Item) -> str | None:
    """Why a test does not run on the device; `None` if it does."""
    suite = item.path.relative_to(TESTS).parts[0]
    if DEVICE == "cuda" and not torch.cuda.is_available():
        return f"{VARIABLE}=cuda, and torch finds no GPU"
    if suite == "emulated_cuda" and DEVICE != "emulated":
        return f"runs on the emulated device: {VARIABLE}=emulated"
    if suite not in SUITES and DEVICE != "cpu":
        return f"runs on the CPU only; {VARIABLE} is {DEVICE}"
    if DEVICE == "emulated" and (reason := reason_of(item.nodeid, {**ORDER_DEPENDENT, **MACHINE_DEPENDENT})):
        return reason
    if DEVICE == "emulated" and uses_inductor(item) and not HAS_TRITON:
        return "Inductor compiles Triton kernels for the emulated device, and the package triton is not installed"
    return None


def why_it_fails(item: pytest.Item) -> str | None:
    """Why a test fails on the emulated device; `None` if it passes."""
    return reason_of(item.nodeid, GAPS) or reason_of(item.nodeid, DEFECTS)


def uses_inductor(item: pytest.Item) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return any(isinstance(value, str) and "inductor" in value for value in parameters.values())
