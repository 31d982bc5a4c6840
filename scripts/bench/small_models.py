"""Small networks whose losses contain derivatives, beside eager and the time of the compiled graphs alone.

    python scripts/bench/small_models.py
    python scripts/bench/small_models.py --only forces --backend eager

A step computes a loss and its gradients for all parameters. The ways to compile it:

    outside     torch.compile(network): the derivatives are taken outside of the compiled function
    inside      torch.compile(loss): the whole loss is one graph, with `torch._dynamo.config.trace_autograd_ops`
    without     aotgrad.aot_function(loss): the same without Dynamo

"graphs" are the compiled graphs of a step, called one after another with the inputs of a step, without guards, autograd
and Python: no way of calling them takes less. Each time is over eager's.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from graph_calls import GraphCalls, recorded
from tabulate import tabulate
from timing import add_threads, environment, median_seconds
from torch import Tensor, nn
from torch.func import functional_call

import aotgrad
from aotgrad.backends import get
from aotgrad.backends.base import PartitionCompiler

Parameters = Mapping[str, Tensor]
Network = Callable[[Parameters, Tensor], Tensor]
Loss = Callable[[Network, Parameters, Tensor], Tensor]


def mlp(*widths: int, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


def slope_of(values: Tensor, x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(values.sum(), x, create_graph=True)
    return slope


def laplacian(network: Network, parameters: Parameters, points: Tensor) -> Tensor:
    """The residual of a physics-informed network: one gradient, then one for each coordinate."""
    slope = slope_of(network(parameters, points), points)
    seconds = [slope_of(slope[:, k], points)[:, k] for k in range(points.shape[1])]
    return (torch.stack(seconds).sum(0) + points.prod(1)).square().mean()


def energy_and_forces(network: Network, parameters: Parameters, positions: Tensor) -> Tensor:
    energy = network(parameters, positions)
    return energy.square().mean() + (slope_of(energy, positions) + 1).square().mean()


def gradient_penalty(network: Network, parameters: Parameters, x: Tensor) -> Tensor:
    """A critic on two halves of a batch, and the norm of its slope between them (WGAN-GP)."""
    real, fake = x.chunk(2)
    between = 0.3 * real + 0.7 * fake
    penalty = (slope_of(network(parameters, between), between).norm(dim=1) - 1).square().mean()
    return network(parameters, fake).mean() - network(parameters, real).mean() + 10 * penalty


def meta_learning(network: Network, parameters: Parameters, x: Tensor) -> Tensor:
    """The loss after one step on another loss (MAML)."""
    support, query = x.chunk(2)
    inner = (network(parameters, support) - support.sum(1, keepdim=True)).square().mean()
    gradients = torch.autograd.grad(inner, list(parameters.values()), create_graph=True)
    adapted = {name: p - 0.1 * g for (name, p), g in zip(parameters.items(), gradients, strict=True)}
    return (network(adapted, query) - query.sum(1, keepdim=True)).square().mean()


def hessian_vector_product(network: Network, parameters: Parameters, x: Tensor) -> Tensor:
    """The product of a gradient with a vector: its gradient is a Hessian-vector product."""
    loss = network(parameters, x).square().mean()
    gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    return torch.stack([g.sum() for g in gradients]).sum()


def neural_ode(network: Network, parameters: Parameters, x: Tensor) -> Tensor:
    """Four steps of a Runge-Kutta method of fourth order."""
    h = 0.1
    for _ in range(4):
        a = network(parameters, x)
        b = network(parameters, x + h / 2 * a)
        c = network(parameters, x + h / 2 * b)
        x = x + h / 6 * (a + 2 * b + 2 * c + network(parameters, x + h * c))
    return x.square().mean()


@dataclass(frozen=True)
class Program:
    """`by_input`: the loss contains derivatives by the input. It requires grad before: Dynamo breaks the graph otherwise."""

    loss: Loss
    module: Callable[[], nn.Module]
    inputs: tuple[int, int]
    by_input: bool = False


PROGRAMS = {
    "laplacian": Program(laplacian, lambda: mlp(2, 32, 32, 1), (256, 2), by_input=True),
    "forces": Program(energy_and_forces, lambda: mlp(3, 64, 64, 1, activation=nn.SiLU), (200, 3), by_input=True),
    "penalty": Program(gradient_penalty, lambda: mlp(8, 64, 64, 1, activation=nn.ReLU), (512, 8), by_input=True),
    "meta": Program(meta_learning, lambda: mlp(4, 40, 40, 1, activation=nn.ReLU), (100, 4)),
    "curvature": Program(hessian_vector_product, lambda: mlp(10, 64, 64, 1), (1000, 10)),
    "ode": Program(neural_ode, lambda: mlp(4, 50, 4), (500, 4)),
}


def steps(program: Program, backend: str) -> dict[str, Callable[[], list[Tensor | None]]]:
    """A step by the way that it is compiled."""
    torch.manual_seed(0)
    module = program.module()
    parameters, x = dict(module.named_parameters()), torch.randn(program.inputs, requires_grad=program.by_input)
    compiled = torch.compile(module, backend=backend)

    def network(run: Any, parameters: Parameters, x: Tensor) -> Tensor:
        return functional_call(run, dict(parameters), (x,))

    def whole(parameters: Parameters, x: Tensor) -> Tensor:
        return program.loss(partial(network, module), parameters, x)

    def step(loss: Callable[[Parameters, Tensor], Tensor]) -> list[Tensor | None]:
        return list(torch.autograd.grad(loss(parameters, x), list(parameters.values()), allow_unused=True))

    outside = partial(program.loss, partial(network, compiled))
    ways = {"eager": whole, "outside": outside, "inside": torch.compile(whole, backend=backend)}
    name = "inductor" if backend == "aotgrad" else "eager"
    return {way: partial(step, loss) for way, loss in {**ways, "without": aotgrad.aot_function(whole, name)}.items()} | {
        f"graphs {way}": replay(step, loss, get(name), module) for way, loss in {"outside": program, "inside": whole}.items()
    }


def replay(step: Callable, loss: Any, backend: PartitionCompiler, module: nn.Module) -> Callable[[], Any]:
    """The compiled graphs of a step alone."""

    def compiled(graphs: GraphCalls) -> Callable[[], Any]:
        if not isinstance(loss, Program):
            return partial(step, aotgrad.aot_function(loss, graphs))
        network = aotgrad.aot_module(module, graphs)
        return partial(step, partial(loss.loss, lambda parameters, x: functional_call(network, dict(parameters), (x,))))

    return recorded(backend, compiled).replay


def row(name: str, backend: str, rounds: int) -> list[object]:
    torch.compiler.reset()
    candidates = steps(PROGRAMS[name], backend)
    expected = candidates["eager"]()
    for way in ("outside", "inside", "without"):
        for _ in range(3):
            found = candidates[way]()
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    seconds = median_seconds(candidates, rounds)
    eager = seconds.pop("eager")
    ratios = [seconds[way] / eager for way in ("outside", "graphs outside", "inside", "without", "graphs inside")]
    return [PROGRAMS[name].loss.__name__, eager * 1e6, *ratios]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--backend", choices=("aotgrad", "aotgrad_eager"), default="aotgrad")
    parser.add_argument("--rounds", type=int, default=15)
    add_threads(parser)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    torch._dynamo.config.trace_autograd_ops = True
    header = ["loss", "eager (µs)", "outside", "its graphs", "inside", "without Dynamo", "their graphs"]
    table = [row(name, arguments.backend, arguments.rounds) for name in arguments.only]
    print(tabulate(table, header, tablefmt="github", floatfmt=("", ".0f", *[".2f"] * 5)))
    print(f"\n{environment()}; `{arguments.backend}`; medians of {arguments.rounds} rounds, over eager's")


if __name__ == "__main__":
    main()
