"""Fixtures of the tests on the emulated device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from tests.emulated_cuda.cuda_graphs import recorded


@pytest.fixture
def recordings() -> Iterator[Counter[str]]:
    torch._dynamo.reset()
    with recorded() as counts:
        yield counts
