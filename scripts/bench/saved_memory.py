"""Measure what a forward through Inductor saves for its backward, beside eager and torch's own Inductor.

    python scripts/bench/saved_memory.py
    python scripts/bench/saved_memory.py --only unet gpt6 --markdown

Each storage counts once, parameters do not. The floor is the least that recomputing leaves: `memory_budget=0` with eager
halves.
"""

import argparse
import copy
import functools
import sys
from pathlib import Path
from typing import Any

import torch
from step_models import STEPS
from tabulate import tabulate
from timing import add_threads, environment

sys.path.insert(0, str(Path(__file__).parents[2]))
from examples.saved_bytes import saved_bytes

COMPILED: dict[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "aotgrad": {"backend": "aotgrad"},
    "floor": {"backend": "aotgrad_eager", "options": {"memory_budget": 0.0}},
}


def saved_by(name: str) -> dict[str, int]:
    """Bytes, by side."""
    torch.manual_seed(0)
    model, inputs = STEPS[name]()
    torch._dynamo.reset()
    models = {"eager": model} | {side: copy.deepcopy(model) for side in COMPILED}
    for side, settings in COMPILED.items():
        models[side].compile(**settings)
        models[side](*inputs)
    return {side: saved_bytes(functools.partial(each, *inputs), each.parameters()) for side, each in models.items()}


def row(name: str) -> list[str]:
    saved = saved_by(name)
    kilobytes = [f"{saved[side] / 1e3:.0f}" for side in ("eager", "inductor", "aotgrad", "floor")]
    return [name, *kilobytes, *(f"{saved['aotgrad'] / saved[side]:.2f}" for side in ("eager", "inductor"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="which models")
    parser.add_argument("--markdown", action="store_true", help="print a table for a document")
    add_threads(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    headers = ["saved (kB)", "eager", "inductor", "aotgrad", "floor", "aotgrad / eager", "aotgrad / inductor"]
    tablefmt = "github" if arguments.markdown else "simple"
    print(f"{environment()}\n")
    print(tabulate(map(row, arguments.only), headers, tablefmt, disable_numparse=True, colalign=["left", *["right"] * 6]))


if __name__ == "__main__":
    main()
