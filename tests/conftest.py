"""What every test starts from: a fixed seed, one thread, and every stage checked against its contract."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from aotgrad.backends import registry
from tests.golden.harness import golden

__all__ = ["golden"]

os.environ.setdefault("AOTGRAD_VERIFY", "1")
# Each xdist worker would otherwise start as many threads as there are cores.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    """The same random numbers whichever tests ran before, and torch's global modes left as they were."""
    torch.manual_seed(0)
    yield
    assert torch.is_grad_enabled(), "the test left grad mode off"
    torch.set_grad_enabled(True)


@pytest.fixture(autouse=True)
def registered_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
