"""Gradients of gradients, beside eager: a first derivative and a loss of it, of an MLP with six layers and 10,000 rows.

    python scripts/bench/second_order.py [--rows 10000] [--width 64] [--rounds 15]

    first    g = grad(mlp(x).sum(), x, create_graph=True); loss(g)      evaluation of a gradient penalty or force field
    full     the same and loss.backward(): the second-order backward    its training

The peer, torch's AOTAutograd, raises at the second derivative; its row says so. *floor* are Inductor's graphs of a step,
called one after another with their inputs, without guards, autograd and Python. Peaks are those of the CPU's allocator,
above what is allocated before the step. Source: the benchmark of PyTorch PR #82544.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from graph_calls import GraphCalls, recorded
from tabulate import tabulate
from timing import add_threads, environment, median_seconds
from torch import nn

import aotgrad
from aotgrad.backends import get

sys.path.insert(0, str(Path(__file__).parents[2]))
from examples import peak_bytes

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}
BACKENDS = {"aotgrad, eager halves": "aotgrad_eager", "aotgrad, Inductor": "aotgrad"}
FLOOR = "floor"
LAYERS = 6


def make_mlp(activation: type[nn.Module], width: int) -> nn.Sequential:
    """`LAYERS` linear layers from 3 coordinates to one value, an activation between each two."""
    sizes = [3, *[width] * (LAYERS - 1), 1]
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    modules = [module for layer in layers for module in (layer, activation())]
    return nn.Sequential(*modules[:-1])


def step(model: Callable, parameters: list[torch.Tensor], x: torch.Tensor, backward: bool) -> torch.Tensor:
    """The loss of the first derivative; with `backward`, also the gradients of the parameters."""
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    loss = (slope.square().sum(1) - 1).square().mean()
    if backward:
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = gradient
    return loss


def peer(model: nn.Module) -> Callable:
    """torch's own AOTAutograd with eager halves."""
    return torch.compile(model, backend="aot_eager")


def candidates(model: nn.Module) -> dict[str, Callable]:
    compiled = {name: torch.compile(model, backend=backend) for name, backend in BACKENDS.items()}
    return {"eager": model, **compiled}


def graphs_alone(model: nn.Module, parameters: list[torch.Tensor], x: torch.Tensor, backward: bool) -> Callable[[], None]:
    """The graphs of a step, compiled by Inductor."""

    def compiled(graphs: GraphCalls) -> Callable[[], torch.Tensor]:
        return functools.partial(step, aotgrad.aot_module(model, graphs), parameters, x, backward)

    return recorded(get("inductor"), compiled).replay


def check(run: Callable, parameters: list[torch.Tensor], expected: list[torch.Tensor | None]) -> None:
    run()
    for parameter, gradient in zip(parameters, expected, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        if gradient is not None:
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)


def measure(activation: str, rows: int, width: int, rounds: int) -> list[list[object]]:
    """A row for `first` and one for `full`: milliseconds, eager's time over each, and the peak of each over eager's."""
    torch.manual_seed(0)
    torch.compiler.reset()
    model = make_mlp(ACTIVATIONS[activation], width)
    parameters: list[torch.Tensor] = list(model.parameters())
    x = torch.randn(rows, 3, requires_grad=True)
    models = candidates(model)
    step(model, parameters, x, backward=True)
    expected = [parameter.grad for parameter in parameters]
    for run in models.values():
        check(functools.partial(step, run, parameters, x, True), parameters, expected)
    table = []
    for what, backward in {"first": False, "full": True}.items():
        runs = {name: functools.partial(step, run, parameters, x, backward) for name, run in models.items()}
        seconds = median_seconds({**runs, FLOOR: graphs_alone(model, parameters, x, backward)}, rounds)
        times = [seconds[name] * 1e3 for name in models]
        ratios = [seconds["eager"] / seconds[name] for name in (*BACKENDS, FLOOR)]
        peaks = {name: peak_of(run, model) for name, run in runs.items()}
        ratios += [peaks[name] / peaks["eager"] for name in BACKENDS]
        table.append([activation, what, *times, peers_answer(model, parameters, x), *ratios])
    return table


def peak_of(run: Callable[[], torch.Tensor], model: nn.Module) -> int:
    """The most bytes allocated at any moment of a step that starts without gradients."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    return peak_bytes.measure(run).peak_bytes


def peers_answer(model: nn.Module, parameters: list[torch.Tensor], x: torch.Tensor) -> str:
    """The peer's entry in place of a time."""
    try:
        step(peer(model), parameters, x, backward=True)
    except RuntimeError:
        return "raises"
    return "runs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    add_threads(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    header = ["MLP", "row", *(f"{name} (ms)" for name in ("eager", *BACKENDS)), "peer"]
    header += [f"eager / {name}" for name in (*BACKENDS, FLOOR)] + [f"peak of {name} / eager" for name in BACKENDS]
    table = [row for name in ACTIVATIONS for row in measure(name, options.rows, options.width, options.rounds)]
    print(tabulate(table, header, tablefmt="github", floatfmt=".2f"))
    print(f"\n{environment()}; medians of {options.rounds} rounds")


if __name__ == "__main__":
    main()
