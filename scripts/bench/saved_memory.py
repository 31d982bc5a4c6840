"""Measure what a forward through Inductor saves for its backward, beside eager and torch's own Inductor.

    python scripts/bench/saved_memory.py
    python scripts/bench/saved_memory.py --only unet gpt6 --markdown

Each storage counts once, parameters do not. The floor is the least that recomputing leaves: `memory_budget=0` with eager
halves.
"""

import functools
import sys
from pathlib import Path
from typing import Any

from step_models import beside_eager, print_table

sys.path.insert(0, str(Path(__file__).parents[2]))
from examples.saved_bytes import saved_bytes

COMPILED: dict[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "aotgrad": {"backend": "aotgrad"},
    "floor": {"backend": "aotgrad_eager", "options": {"memory_budget": 0.0}},
}


def saved_by(name: str) -> dict[str, int]:
    """Bytes, by side."""
    models, inputs = beside_eager(name, COMPILED)
    for side in COMPILED:
        models[side](*inputs)
    return {side: saved_bytes(functools.partial(each, *inputs), each.parameters()) for side, each in models.items()}


def row(name: str) -> list[str]:
    saved = saved_by(name)
    kilobytes = [f"{saved[side] / 1e3:.0f}" for side in ("eager", "inductor", "aotgrad", "floor")]
    return [name, *kilobytes, *(f"{saved['aotgrad'] / saved[side]:.2f}" for side in ("eager", "inductor"))]


HEADERS = ["saved (kB)", "eager", "inductor", "aotgrad", "floor", "aotgrad / eager", "aotgrad / inductor"]

if __name__ == "__main__":
    print_table(__doc__, HEADERS, row)
