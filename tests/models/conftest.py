"""Setup of every model test: compiled from scratch, with eager's random numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters as dynamo_counters

import aotgrad


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Reset compiled code and counters, let Dynamo trace `nn.LSTM`, and draw eager's random numbers."""
    torch._dynamo.reset()
    dynamo_counters.clear()
    aotgrad.counters.clear()
    with torch._dynamo.config.patch(allow_rnn=True), torch._inductor.config.patch(fallback_random=True):
        yield
