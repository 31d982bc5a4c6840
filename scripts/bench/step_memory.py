"""Measure the peak memory of a training step with eager halves, beside eager's own.

    python scripts/bench/step_memory.py
    python scripts/bench/step_memory.py --only unet gpt6 --markdown

A step is forward and backward; gradients are set to `None` before it. Peaks are those of the CPU's allocator, above what is
allocated before the step. The peer is `aot_eager`. *floor* is what no order of the ops can do without: the largest op's
inputs and results, or all gradients.
"""

import argparse
import copy

import torch
from live_bytes import least_peak
from memory import peak_of, step
from step_models import STEPS
from tabulate import tabulate
from timing import add_threads, environment

BACKENDS = {"peer": "aot_eager", "aotgrad": "aotgrad_eager"}


def peaks_of(name: str) -> dict[str, int]:
    """Bytes, by side."""
    torch.manual_seed(0)
    model, inputs = STEPS[name]()
    torch._dynamo.reset()
    models = {"eager": model} | {side: copy.deepcopy(model) for side in BACKENDS}
    for side, backend in BACKENDS.items():
        models[side].compile(backend=backend)
    peaks = {side: peak_of(each, inputs) for side, each in models.items()}
    model.zero_grad(set_to_none=True)
    return {**peaks, "floor": least_peak(lambda: step(model, inputs))}


def row(name: str) -> list[str]:
    peaks = peaks_of(name)
    megabytes = [f"{peaks[side] / 1e6:.3f}" for side in ("eager", *BACKENDS)]
    return [name, *megabytes, *(f"{peaks[side] / peaks['eager']:.2f}" for side in (*BACKENDS, "floor"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), help="which models")
    parser.add_argument("--markdown", action="store_true", help="print a table for a document")
    add_threads(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    headers = ["peak (MB)", "eager", "peer", "aotgrad", "peer / eager", "aotgrad / eager", "floor / eager"]
    tablefmt = "github" if arguments.markdown else "simple"
    print(f"{environment()}\n")
    print(tabulate(map(row, arguments.only), headers, tablefmt, disable_numparse=True, colalign=["left", *["right"] * 6]))


if __name__ == "__main__":
    main()
