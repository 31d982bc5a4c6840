"""Measure a whole training step: eager, a compiled model with a compiled optimizer, and `aotgrad.train_step`.

    python scripts/bench/training_step.py
    python scripts/bench/training_step.py --parameters 100 --markdown

The model is a chain of small linear layers, so that the time is that of the host. AdamW updates it; `lr` changes at each
step, as with a schedule. Candidates take turns in one process. The first steps, which compile, are timed apart, with cold
caches of Inductor; a step of an optimizer has two graphs, without and with its state. *floor* is the compiled graph of a
step alone, over eager.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

import torch
from graph_calls import recorded
from tabulate import tabulate
from timing import add_threads, environment, median_seconds
from torch import nn
from torch._inductor.utils import fresh_cache

import aotgrad
from aotgrad.backends import get
from aotgrad.backends.base import AnyBackend

WIDTH, ROWS = 16, 8

Step = Callable[[], object]


def training(parameters: int, compile_parts: Callable = lambda part: part) -> tuple[Callable, list, Step]:
    """A step of a model with so many parameters, its state, and what changes `lr` between steps."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(parameters // 2)))
    is_compiled = compile_parts is torch.compile
    rate = torch.tensor(1e-3) if is_compiled else 1e-3  # a number would be compiled anew
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, foreach=None if is_compiled else True)  # as torch allows
    forward, update = compile_parts(model), compile_parts(optimizer.step)
    rates = itertools.cycle([1e-3, 9e-4, 8e-4])

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(forward(x), y)
        loss.backward()
        update()
        return loss.detach()

    def schedule() -> None:
        (group,) = optimizer.param_groups
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(next(rates))
        else:
            group["lr"] = next(rates)

    return step, [model, optimizer], schedule


def candidate(kind: str, parameters: int) -> Step:
    """One step with its schedule."""
    return running(kind, parameters, BACKENDS.get(kind))


def running(kind: str, parameters: int, backend: AnyBackend | None) -> Step:
    """One step with its schedule, compiled by a backend of `train_step` if there is one."""
    step, state, schedule = training(parameters, torch.compile if kind == PARTS else lambda part: part)
    if backend is not None:
        step = aotgrad.train_step(step, state, backend=backend)
    x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)

    def run() -> object:
        schedule()
        return step(x, y)

    return run


EAGER, PARTS = "eager, foreach", "torch.compile of model and optimizer.step"
BACKENDS = {"train_step, eager halves": "eager", "train_step, Inductor": "inductor"}
KINDS = (EAGER, PARTS, *BACKENDS)


def graphs_alone(kind: str, parameters: int) -> Callable[[], None]:
    torch._dynamo.reset()
    return recorded(get(BACKENDS[kind]), lambda graphs: running(kind, parameters, graphs)).replay


def rows(parameters: int) -> list[list[str]]:
    steps, first = {}, {}
    for kind in KINDS:
        torch._dynamo.reset()
        with fresh_cache():
            steps[kind] = candidate(kind, parameters)
            started = time.perf_counter()
            for _ in range(2):
                steps[kind]()
            first[kind] = time.perf_counter() - started
    alone = {kind: graphs_alone(kind, parameters) for kind in BACKENDS}
    seconds = median_seconds({**steps, **{f"floor of {kind}": run for kind, run in alone.items()}})
    floors = {kind: f"{seconds[f'floor of {kind}'] / seconds[EAGER]:.2f}" for kind in BACKENDS}
    return [
        [
            f"{parameters} parameters: {kind}",
            f"{seconds[kind] * 1e3:.2f}",
            f"{seconds[kind] / seconds[EAGER]:.2f}",
            f"{seconds[kind] / seconds[PARTS]:.2f}",
            floors.get(kind, ""),
            f"{first[kind]:.1f}",
        ]
        for kind in KINDS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", nargs="+", type=int, default=[100, 400], help="even numbers (default: %(default)s)")
    add_threads(parser)
    parser.add_argument("--markdown", action="store_true", help="print the table for a document")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = [row for parameters in arguments.parameters for row in rows(parameters)]
    headers = ["", "step (ms)", "over eager", "over compiled parts", "floor", "first two steps (s)"]
    align = ("left", *["right"] * 5)
    style = "github" if arguments.markdown else "simple"
    print(f"{environment()}; medians\n")
    print(tabulate(found, headers, tablefmt=style, disable_numparse=True, colalign=align))


if __name__ == "__main__":
    main()
