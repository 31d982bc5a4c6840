"""Measure the peak memory of a training step with eager halves, beside eager's own.

    python scripts/bench/step_memory.py
    python scripts/bench/step_memory.py --only unet gpt6 --markdown

A step is forward and backward; gradients are set to `None` before it. Peaks are those of the CPU's allocator, above what is
allocated before the step. The peer is `aot_eager`. *floor* is what no order of the ops can do without: the largest op's
inputs and results, or all gradients.
"""

from live_bytes import least_peak
from memory import peak_of, step
from step_models import beside_eager, print_table

COMPILED = {"peer": {"backend": "aot_eager"}, "aotgrad": {"backend": "aotgrad_eager"}}


def peaks_of(name: str) -> dict[str, int]:
    """Bytes, by side."""
    models, inputs = beside_eager(name, COMPILED)
    peaks = {side: peak_of(each, inputs) for side, each in models.items()}
    models["eager"].zero_grad(set_to_none=True)
    return {**peaks, "floor": least_peak(lambda: step(models["eager"], inputs))}


def row(name: str) -> list[str]:
    peaks = peaks_of(name)
    megabytes = [f"{peaks[side] / 1e6:.3f}" for side in ("eager", *COMPILED)]
    return [name, *megabytes, *(f"{peaks[side] / peaks['eager']:.2f}" for side in (*COMPILED, "floor"))]


HEADERS = ["peak (MB)", "eager", "peer", "aotgrad", "peer / eager", "aotgrad / eager", "floor / eager"]

if __name__ == "__main__":
    print_table(__doc__, HEADERS, row)
