"""The harness: errors and hanging ranks end a run, and the next run finds new ranks."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks import RankError, Ranks


def own_rank() -> int:
    total = torch.tensor(dist.get_rank())
    dist.all_reduce(total)
    assert total == 1
    return dist.get_rank()


def raise_on_one() -> None:
    if dist.get_rank() == 1:
        raise ValueError("what happened")
    dist.barrier()


def hang_on_one() -> None:
    if dist.get_rank() == 1:
        time.sleep(1000)


def test_results_errors_and_hanging_ranks() -> None:
    with Ranks(2) as ranks:
        assert ranks.run(own_rank) == [0, 1]
        with pytest.raises(RankError, match="ValueError: what happened"):
            ranks.run(raise_on_one)
        assert ranks.run(own_rank) == [0, 1]
        with pytest.raises(RankError, match=r"(?s)rank 1 does not answer.*hang_on_one"):
            ranks.run(hang_on_one, seconds=2)
        processes = ranks.processes
        assert ranks.run(own_rank) == [0, 1]
    assert not any(process.is_alive() for process in processes)
