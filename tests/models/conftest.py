"""What holds for every model: compiled from nothing, with eager's random numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters as dynamo_counters

import aotgrad


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled before and all counters at zero; Dynamo traces `nn.LSTM`, and random numbers are eager's."""
    torch._dynamo.reset()
    dynamo_counters.clear()
    aotgrad.counters.clear()
    with torch._dynamo.config.patch(allow_rnn=True), torch._inductor.config.patch(fallback_random=True):
        yield
