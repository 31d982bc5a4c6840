"""A program that torchrun starts: it trains, or raises on one rank in the middle of a backward."""

from __future__ import annotations

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.programs import Model, assert_same, compiled, tokens, train


def parallel() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(Model())


def raise_on_rank_1(gradient: torch.Tensor) -> None:
    if dist.get_rank() == 1:
        raise ValueError("what happened on rank 1")


def main(what: str, backend: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    compare(what, backend)
    torch._dynamo.reset()
    gc.collect()  # a model that is alive keeps the group and its threads, and Python may end while one of them runs
    dist.destroy_process_group()
    sys.stdout.write(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} is done\n")  # at once: ranks share the pipe


def compare(what: str, backend: str) -> None:
    batches = [tokens(10 * step + dist.get_rank()) for step in range(3)]
    ours = compiled(parallel(), backend)
    if what == "raise":
        ours.module.embedding.weight.register_hook(raise_on_rank_1)
    found = train(ours, batches)
    assert_same(found, train(parallel(), batches), backend)


if __name__ == "__main__":
    main(*sys.argv[1:])
