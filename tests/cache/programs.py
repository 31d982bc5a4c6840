"""Small programs that are compiled twice, in this process or in separate ones, and their results.

python -m tests.cache.programs mlp aotgrad_eager FILE        runs a program and saves what it computed and counted
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import aotgrad

REPOSITORY = Path(__file__).parents[2]


def mlp() -> tuple[Callable, Sequence[Any]]:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    return lambda x: F.cross_entropy(model(x), torch.tensor([1, 2, 0])), [torch.randn(3, 8), *model.parameters()]


def writes() -> tuple[Callable, Sequence[Any]]:
    """Changes an input, returns a view of it and a view of an intermediate."""

    def function(x, w):
        x.mul_(2)
        hidden = (x @ w).sin()
        return x[1:], hidden.t(), hidden.exp().sum()

    return function, [torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)]


def overlapping() -> tuple[Callable, Sequence[Any]]:
    def function(one, other, w):
        one.add_(1)
        return (other * w).cos().sum()

    memory = torch.randn(6)
    return function, [memory[:4], memory[2:], torch.randn(4, requires_grad=True)]


def dropout() -> tuple[Callable, Sequence[Any]]:
    return lambda x: F.dropout(x.sin(), 0.5).sum(), [torch.randn(8, 8, requires_grad=True)]


def small() -> tuple[Callable, Sequence[Any]]:
    return lambda x: x.sin(), [torch.randn(3, requires_grad=True)]


PROGRAMS = {function.__name__: function for function in (mlp, writes, overlapping, dropout, small)}


COMPILERS: dict[str, Callable[[Callable], Callable]] = {
    "aot_function": functools.partial(aotgrad.aot_function, fw_compiler=aotgrad.nop, options={"cache": True})
}
"""The compilers that are not backends of `torch.compile`."""


def outcome(name: str, compiler: Callable[[Callable], Callable]) -> list[torch.Tensor]:
    """The results of a program, with its inputs and gradients."""
    torch.manual_seed(0)
    function, tensors = PROGRAMS[name]()
    inputs = [tensor for tensor in tensors if not isinstance(tensor, nn.Parameter)]
    results = compiler(function)(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    differentiable = [result.sum() for result in results if result.requires_grad]
    torch.stack(differentiable).sum().backward()
    gradients = [tensor.grad for tensor in tensors if tensor.requires_grad]
    return [result.detach().clone() for result in (*results, *inputs, *gradients)]


def run_in_another_process(name: str, backend: str, folder: Path) -> tuple[list[torch.Tensor], dict[str, int]]:
    """The results of a program in another process, and its `aotgrad.counters`."""
    return run_in_processes(name, backend, [folder / "outcome.pt"])[0]


def run_in_processes(name: str, backend: str, paths: Sequence[Path]) -> list[tuple[list[torch.Tensor], dict[str, int]]]:
    """The results of a program in several processes at once."""
    commands = [[sys.executable, "-m", "tests.cache.programs", name, backend, str(path)] for path in paths]
    processes = [subprocess.Popen(command, cwd=REPOSITORY) for command in commands]
    assert [process.wait(timeout=600) for process in processes] == [0] * len(paths)
    return [torch.load(path) for path in paths]


def main(name: str, backend: str, path: str) -> None:
    torch.set_num_threads(1)
    values = outcome(name, COMPILERS.get(backend) or functools.partial(torch.compile, backend=backend))
    torch.save((values, dict(aotgrad.counters)), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
