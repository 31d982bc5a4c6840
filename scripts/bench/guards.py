#!/usr/bin/env python3
"""How long it takes to find out that a plan may be used again.

    python scripts/bench/guards.py

Per number of tensors: the check of a plan that changes nothing; of one that changes an input, and so compares which
inputs share memory; the same with the changed input at another address at every call; the same with disjoint slices of one
buffer; and reading a module with as many parameters. The aim is 1 us and 0.1 us a tensor.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence

import torch
from tabulate import tabulate
from timing import median_seconds
from torch import nn

import aotgrad
from aotgrad.lifting import LiftedModule

COUNTS = (1, 10, 100, 1000)


def check(function: Callable, tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
    """The guards of a plan made for `tensors`, ready to be asked."""
    compiled = aotgrad.aot_function(function, aotgrad.nop)
    compiled(*tensors)
    guards = compiled.plans()[0].guards
    assert guards.check(tensors)
    return lambda: guards.check(tensors)


def check_moving(function: Callable, tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
    """The same, with a first tensor that lies elsewhere at every call, as an activation does."""
    compiled = aotgrad.aot_function(function, aotgrad.nop)
    compiled(*tensors)
    guards = compiled.plans()[0].guards
    calls = itertools.cycle([[torch.ones(4, 4), *tensors[1:]] for _ in range(8)])
    return lambda: guards.check(next(calls))


def reads(*tensors: torch.Tensor) -> torch.Tensor:
    return tensors[0] * 2


def changes(*tensors: torch.Tensor) -> torch.Tensor:
    return tensors[0].mul_(2)


def measure(count: int) -> list[object]:
    tensors = [torch.ones(4, 4) for _ in range(count)]
    module = LiftedModule(nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(count))))
    seconds = median_seconds(
        {
            "plain": check(reads, tensors),
            "changing": check(changes, tensors),
            "moving": check_moving(changes, tensors),
            "slices": check(changes, torch.ones(count, 4, 4).unbind()),
            "module": module.read,
        }
    )
    return [count, *(time * 1e6 for time in seconds.values()), 1 + 0.1 * count]


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    headers = ["tensors", "plain (us)", "changes an input (us)", "which moves (us)", "a slice of a buffer (us)"]
    headers += ["read a module (us)", "aim (us)"]
    print(tabulate(map(measure, COUNTS), headers, tablefmt="github", floatfmt=".2f"))


if __name__ == "__main__":
    main()
