"""Two and four ranks, which the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from tests.distributed.ranks import Ranks


def pytest_ignore_collect() -> bool | None:
    """Ignore the folder where torch has no gloo."""
    return None if dist.is_available() and dist.is_gloo_available() else True


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks
