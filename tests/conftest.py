"""Common setup of every test: a fixed seed, one thread, and contract checks on every stage."""

from __future__ import annotations

from tests import device  # loads the emulated device, before torch

# isort: split
import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from aotgrad.backends import registry
from tests.golden.harness import golden
from tests.native.built import implementation, implementation_of_file, library
from tests.quick_compiler import use_quick_compiler
from tests.sampling import select

__all__ = ["golden", "implementation", "implementation_of_file", "library"]

os.environ.setdefault("AOTGRAD_VERIFY", "1")
# Tests and their child processes leave the user's cache alone.
os.environ["AOTGRAD_CACHE_DIR"] = tempfile.mkdtemp(prefix="aotgrad-tests-")
atexit.register(shutil.rmtree, os.environ["AOTGRAD_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("AOTGRAD_NATIVE", "built")  # built once, by `implementation_of_file`
use_quick_compiler()
# Each xdist worker would otherwise start as many threads as there are cores.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    """Seed each test independently of earlier tests, and restore torch's global modes."""
    torch.manual_seed(0)
    yield
    assert torch.is_grad_enabled(), "the test left grad mode off"
    torch.set_grad_enabled(True)


@pytest.fixture(autouse=True)
def registered_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo a test's registrations when it ends."""
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))


def pytest_configure() -> None:
    device.use_device()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests for other devices, mark failures; select the tests of the day."""
    device.mark(items)
    select(config, items)


def pytest_collection_finish() -> None:
    """An open process group would be that of every test."""
    assert not (dist.is_available() and dist.is_initialized()), "a module opens a process group where it is imported"


if os.environ.get("AOTGRAD_TEST_CACHE") == "1":

    @pytest.fixture(autouse=True)
    def through_cache() -> Iterator[None]:
        """Compile through the serialized form on disk."""
        from tests.cache.round_trip import through_the_cache

        with through_the_cache():
            yield

    def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
        from tests.cache.round_trip import totals

        terminalreporter.write_line(f"plans: {totals['restored']} restored, {totals['as compiled']} as they were compiled")
