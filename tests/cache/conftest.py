"""A separate cache for each test, and counters of its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import aotgrad
from aotgrad.cache import store


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The folder of the compiled functions."""
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AOTGRAD_VERIFY", "0")  # looking at the stages needs stages
    monkeypatch.setattr(store, "_warned", set())
    torch._dynamo.reset()
    return tmp_path / "cache" / "plans"


@pytest.fixture
def counted() -> Callable[[], dict[str, int]]:
    """The counters since the last call."""
    names = ("cache_hits", "cache_misses", "cache_bypasses", "cache_failures", "compilations")
    before = Counter(aotgrad.counters)

    def read() -> dict[str, int]:
        found = {name: aotgrad.counters[name] - before[name] for name in names}
        before.update({name: count for name, count in found.items()})
        return {name: count for name, count in found.items() if count}

    return read


def compiled(function: Callable, backend: str = "aotgrad_eager", **options: Any) -> Callable:
    """A function compiled after a reset of Dynamo, as in a new process."""
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, options=options)
