"""Measure the peak memory of training steps whose gradients are freed one by one.

    python scripts/bench/update_peak.py --markdown

A step is forward, backward and the update by AdamW, after which gradients are `None`. Peaks are those of the CPU's
allocator, above what is allocated before the step. Compiled parts are a compiled model with an eager optimizer. *floor* are
the inputs and results of the largest op, where the optimizer takes one parameter after the other.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from live_bytes import least_peak
from tabulate import tabulate
from timing import add_threads, environment
from torch import nn

import aotgrad

sys.path.insert(0, str(Path(__file__).parents[2]))
from examples.gpt import GPT, GPTConfig
from examples.peak_bytes import measure


def mlp() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    layers = (nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8))
    return nn.Sequential(*layers), (torch.randn(32, 256),)


def gpt() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    words, targets = torch.randint(256, (2, 2, 64))
    return GPT(GPTConfig(layers=4, width=256)), (words, targets)


MODELS = {"MLP of 8 layers, 32 rows": mlp, "GPT of 4 layers, 128 tokens": gpt}
BACKENDS = {"train_step, eager halves": "eager", "train_step, Inductor": "inductor"}
SIDES = ("eager", "compiled parts", *BACKENDS)
FLOOR = "floor"


def step_of(side: str, make: Callable) -> tuple[Callable, tuple[torch.Tensor, ...]]:
    """A step of one side, and its inputs."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, inputs = make()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=side != FLOOR)
    forward = torch.compile(model) if side == "compiled parts" else model

    def step(*args: torch.Tensor) -> torch.Tensor:
        loss = forward(*args).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    if side in BACKENDS:
        step = aotgrad.train_step(step, [model, optimizer], keep_gradients=False, backend=BACKENDS[side])
    return step, inputs


def steady_peak(side: str, make: Callable) -> int:
    """The peak of a step once the optimizer has its state."""
    step, inputs = step_of(side, make)
    for _ in range(2):
        step(*inputs)
    return least_peak(lambda: step(*inputs)) if side == FLOOR else measure(lambda: step(*inputs)).peak_bytes


def row(name: str) -> list[str]:
    peaks = {side: steady_peak(side, MODELS[name]) for side in (*SIDES, FLOOR)}
    ratios = (f"{peaks[side] / peaks['compiled parts']:.2f}" for side in (*BACKENDS, FLOOR))
    return [name, *(f"{peaks[side] / 1e6:.2f}" for side in SIDES), *ratios]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="print a table for a document")
    add_threads(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    headers = ["peak (MB)", *SIDES, *(f"{side} / compiled parts" for side in (*BACKENDS, FLOOR))]
    tablefmt = "github" if arguments.markdown else "simple"
    print(f"{environment()}\n")
    print(tabulate(map(row, MODELS), headers, tablefmt, disable_numparse=True, colalign=["left", *["right"] * 7]))


if __name__ == "__main__":
    main()
