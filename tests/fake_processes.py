"""One process that stands for several."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist


@contextlib.contextmanager
def fake_processes(count: int) -> Iterator[None]:
    """While open, this is the first of `count` processes. Collectives return at once, with empty results."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


def skip_if_scattered_is_unwritten() -> None:
    """Skip a test whose collectives scatter, where fake processes leave the result of that as it was allocated."""
    result = torch.full((2,), -1.0)
    dist.reduce_scatter(result, list(torch.ones(dist.get_world_size(), 2)))
    if (result < 0).any():
        pytest.skip("the fake processes of this torch do not write the result of a reduce-scatter")
