#!/usr/bin/env python3
"""How long it takes to find out that a plan may be used again.

    python scripts/bench/guards.py

Per number of tensors: the check of a plan that changes nothing; of one that changes an input, and so compares which
inputs share memory; the same with the changed input at another address at every call; the same with disjoint slices of one
buffer; and reading a module with as many parameters. The aim is 1 us and 0.1 us a tensor. Then what it costs to notice
that inputs of a graph of Dynamo's share memory: with our guard, and with Dynamo's own for it, which asks every pair. Times
are the least of many short samples.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence

import torch
from tabulate import tabulate
from timing import add_threads, environment, least_seconds
from torch import nn
from torch._C._dynamo import guards
from torch._dynamo.guards import GuardManagerType

import aotgrad
from aotgrad.convention import MemorySharing
from aotgrad.lifting import LiftedModule
from aotgrad.memory import MemoryGuard

COUNTS = (1, 10, 100, 1000)


def check(function: Callable, tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
    """The guards of a plan made for `tensors`, ready to be asked."""
    compiled = aotgrad.aot_function(function, aotgrad.nop)
    compiled(*tensors)
    plan_guards = compiled.plans()[0].guards
    assert plan_guards.check(tensors)
    return lambda: plan_guards.check(tensors)


def check_moving(function: Callable, tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
    """The same, with a first tensor that lies elsewhere at every call, as an activation does."""
    compiled = aotgrad.aot_function(function, aotgrad.nop)
    compiled(*tensors)
    plan_guards = compiled.plans()[0].guards
    calls = itertools.cycle([[torch.ones(4, 4), *tensors[1:]] for _ in range(8)])
    return lambda: plan_guards.check(next(calls))


def reads(*tensors: torch.Tensor) -> torch.Tensor:
    return tensors[0] * 2


def changes(*tensors: torch.Tensor) -> torch.Tensor:
    return tensors[0].mul_(2)


def measure(count: int) -> list[object]:
    tensors = [torch.ones(4, 4) for _ in range(count)]
    module = LiftedModule(nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(count))))
    seconds = least_seconds(
        {
            "plain": check(reads, tensors),
            "changing": check(changes, tensors),
            "moving": check_moving(changes, tensors),
            "slices": check(changes, torch.ones(count, 4, 4).unbind()),
            "module": module.read,
        }
    )
    return [count, *(time * 1e6 for time in seconds.values()), 1 + 0.1 * count]


def dynamos_check(tensors: list[torch.Tensor]) -> Callable[[], bool]:
    """Dynamo's guard that no two of `tensors` overlap."""
    root = guards.RootGuardManager()
    kind = GuardManagerType.GUARD_MANAGER
    managers = [root.list_getitem_manager(k, f"tensors[{k}]", tensor, kind) for k, tensor in enumerate(tensors)]
    guards.install_storage_overlapping_guard([], managers, ["no overlap"], None)
    return lambda: root.check(tensors)


def measure_sharing(count: int) -> list[object]:
    tensors = [torch.ones(4, 4) for _ in range(count)]
    guard = MemoryGuard(tensors, MemorySharing.among(tensors, (0,), (), (0,)))
    seconds = least_seconds({"ours": lambda: guard(tensors), "Dynamo's": dynamos_check(tensors)})
    return [count, *(time * 1e6 for time in seconds.values())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_threads(parser)
    torch.set_num_threads(parser.parse_args().threads)
    print(f"{environment()}\n")
    headers = ["tensors", "plain (us)", "changes an input (us)", "which moves (us)", "a slice of a buffer (us)"]
    headers += ["read a module (us)", "aim (us)"]
    print(tabulate(map(measure, COUNTS), headers, tablefmt="github", floatfmt=".2f"))
    headers = ["tensors", "which share memory with a changed one (us)", "Dynamo: which overlap (us)"]
    print("", tabulate(map(measure_sharing, COUNTS[1:]), headers, tablefmt="github", floatfmt=".2f"), sep="\n")


if __name__ == "__main__":
    main()
