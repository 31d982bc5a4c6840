"""What a step costs after parts of a model were frozen: the first one with a new set of parameters, and every other.

    python scripts/bench/freezing.py [--layers 6] [--rounds 5]

One transformer, its graphs run as plain FX code; freezes one layer after the other. Each round starts with a new model.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from tabulate import tabulate
from timing import add_threads, now
from torch import nn

import aotgrad


def make_model(layers: int) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def milliseconds(step: Callable[[], None]) -> float:
    start = now()
    step()
    return (now() - start) * 1000


def measure(layers: int) -> dict[str, float]:
    """Milliseconds of steps."""
    model, x = make_model(layers), torch.randn(5, 2, 32)
    compiled = aotgrad.aot_module(model, aotgrad.nop)

    def step() -> None:
        compiled(x).sum().backward()

    found = {"first step": milliseconds(step), "another step": milliseconds(step)}
    for k, layer in enumerate(model.layers[:-1]):
        layer.requires_grad_(False)
        found[f"first step with {k + 1} of {layers} layers frozen"] = milliseconds(step)
    model.requires_grad_()
    found["first step after everything was unfrozen"] = milliseconds(step)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6, help="of the model (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="each one traces and compiles anew (default: %(default)s)")
    add_threads(parser)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    measure(args.layers)  # what torch imports at the first call is no part of it
    rounds = [measure(args.layers) for _ in range(args.rounds)]
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    rows = [(name, value, value / medians["first step"]) for name, value in medians.items()]
    print(tabulate(rows, headers=["", "ms", "relative to the first step"], floatfmt=("", ".0f", ".2f"), tablefmt="github"))


if __name__ == "__main__":
    main()
