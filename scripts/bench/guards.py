#!/usr/bin/env python3
"""Measure how long the guards take to accept a plan.

    python scripts/bench/guards.py

Per number of tensors: the check of a plan without mutations; of one that mutates an input, and so compares shared memory
of inputs; the same with the mutated input at another address at every call; the same with disjoint slices of one buffer;
and reading a module with as many parameters. The aim is 1 us and 0.1 us a tensor. Each is measured with the functions in
Python and with those in C++, which are built if they are missing. Then the cost of detecting shared memory of inputs of a
Dynamo graph: with our guard, and with Dynamo's own, which checks every pair. Each has a *floor*, a hand-written loop in C++
(`bare_guards.cpp`): it compares the properties of each tensor, and the memory of each with that of the changed one, and
nothing global; or it looks up each parameter in its dictionary, and reads nothing else of its module. Times are the minimum
of many short samples.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from native import extension, libraries, using
from tabulate import tabulate
from timing import add_threads, environment, least_seconds
from torch import nn
from torch._C._dynamo import guards
from torch._dynamo.guards import GuardManagerType

import aotgrad
from aotgrad.convention import MemorySharing
from aotgrad.guards.memory import MemoryGuard
from aotgrad.plan_cache.module_state import LiftedModule

COUNTS = (1, 10, 100, 1000)

Check = Callable[[Sequence[torch.Tensor]], object]


def check_of_plan(function: Callable, tensors: Sequence[torch.Tensor]) -> Check:
    """The guards of a plan made for `tensors`, ready to run."""
    compiled = aotgrad.aot_function(function, aotgrad.nop)
    compiled(*tensors)
    plan_guards = compiled.plans()[0].guards
    assert plan_guards.check(tensors)
    return plan_guards.check


def bare_check(function: Callable, tensors: Sequence[torch.Tensor]) -> Check:
    """The least that they cost."""
    bare = extension("bare_guards")
    found = bare.alike(tensors) if function is reads else bare.alike_and_apart(tensors)
    assert found(tensors)
    return found


def reads(*tensors: torch.Tensor) -> torch.Tensor:
    return tensors[0] * 2


def changes(*tensors: torch.Tensor) -> torch.Tensor:
    return tensors[0].mul_(2)


def runs(make: Callable[[Callable, Sequence[torch.Tensor]], Check], count: int) -> dict[str, Callable[[], object]]:
    """Checks by subject. The first tensor of "which moves" has another address at every call, like an activation."""
    tensors, slices = [torch.ones(4, 4) for _ in range(count)], torch.ones(count, 4, 4).unbind()
    calls = itertools.cycle([[torch.ones(4, 4), *tensors[1:]] for _ in range(8)])
    moving = make(changes, tensors)
    return {
        "plain": partial(make(reads, tensors), tensors),
        "changes an input": partial(make(changes, tensors), tensors),
        "which moves": lambda: moving(next(calls)),
        "a slice of a buffer": partial(make(changes, slices), slices),
    }


def rows(count: int) -> Iterator[list[object]]:
    sides = {}
    for name, library in libraries().items():
        with using(library):
            sides[name] = runs(check_of_plan, count)
    sides["floor"] = runs(bare_check, count)
    seconds = [least_seconds({name: side[subject] for name, side in sides.items()}) for subject in sides["floor"]]
    for name in sides:
        yield [count, name, *(times[name] * 1e6 for times in seconds), 1 + 0.1 * count]


def measure_reading(count: int) -> list[object]:
    layers = [nn.Linear(2, 2, bias=False) for _ in range(count)]
    read = extension("bare_guards").reading([layer._parameters for layer in layers], ["weight"] * count)
    module = LiftedModule(nn.Sequential(*layers))
    assert read() == module.read()[0]
    seconds = least_seconds({"module": module.read, "floor": read})
    return [count, *(time * 1e6 for time in seconds.values()), 1 + 0.1 * count]


def dynamos_check(tensors: list[torch.Tensor]) -> Callable[[], bool]:
    """Dynamo's guard that no two of `tensors` overlap."""
    root = guards.RootGuardManager()
    kind = GuardManagerType.GUARD_MANAGER
    managers = [root.list_getitem_manager(k, f"tensors[{k}]", tensor, kind) for k, tensor in enumerate(tensors)]
    guards.install_storage_overlapping_guard([], managers, ["no overlap"], None)
    return lambda: root.check(tensors)


def measure_sharing(count: int) -> list[object]:
    tensors, sides = [torch.ones(4, 4) for _ in range(count)], {}
    for name, library in libraries().items():
        with using(library):
            sides[name] = partial(MemoryGuard(tensors, MemorySharing((0,), bumped=(0,)).among(tensors)), tensors)
    sides["floor"] = partial(extension("bare_guards").apart(tensors), tensors)
    seconds = least_seconds({**sides, "Dynamo's": dynamos_check(tensors)})
    return [count, *(time * 1e6 for time in seconds.values())]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_threads(parser)
    torch.set_num_threads(parser.parse_args().threads)
    print(f"{environment()}; us\n")
    headers = ["tensors", "", "plain", "changes an input", "which moves", "a slice of a buffer", "aim"]
    print(tabulate([row for count in COUNTS for row in rows(count)], headers, tablefmt="github", floatfmt=".2f"))
    headers = ["tensors", "read a module", "floor", "aim"]
    print("", tabulate(map(measure_reading, COUNTS), headers, tablefmt="github", floatfmt=".2f"), sep="\n")
    headers = ["tensors", "which share memory with a changed one", "with C++", "floor", "Dynamo: which overlap"]
    print("", tabulate(map(measure_sharing, COUNTS[1:]), headers, tablefmt="github", floatfmt=".2f"), sep="\n")


if __name__ == "__main__":
    main()
