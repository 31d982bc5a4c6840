"""Measure backwards of aotgrad beside eager and its peer, torch's own AOTAutograd: heads, wanted gradients, streaming.

    python scripts/bench/backward.py
    python scripts/bench/backward.py --only heads selection --markdown backward.md

The candidates take turns in one process; medians of processor time are compared. All graphs run as plain FX code
("eager halves"), so only the choice of gradients and their order differ.
"""

import argparse
import statistics
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import functorch.compile
import torch
import torch.nn.functional as F
from tabulate import tabulate
from timing import add_threads, median_seconds, now
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import aotgrad
from aotgrad.backends.eager import compile_eager
from aotgrad.runtime import autograd

Function = Callable[..., Any]
Backward = Callable[[], object]

ROUNDS = 25
MILLISECONDS, MICROSECONDS = 1e-3, 1e-6
MEGABYTES = 1e6
SEGMENTS = 8
LAYERS = 12


@dataclass(frozen=True)
class Table:
    """Measured numbers by subject and candidate, and the main figure."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        align = ("left", *["right"] * (len(self.headers) - 1))
        body = tabulate(self.rows, self.headers, tablefmt="github", disable_numparse=True, colalign=align)
        return f"**{self.title}**\n\n{body}"


# --- Backward times --------------------------------------------------------------------------------------------------


def backward_seconds(forwards: Mapping[str, Callable[[], Backward]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of the backward alone. `forwards[name]()` runs a forward and returns its backward."""
    samples: dict[str, list[float]] = {name: [] for name in forwards}
    for number in range(rounds + 3):  # The first three compile and warm up.
        for name, forward in forwards.items():
            backward = forward()
            started = now()
            backward()
            if number >= 3:
                samples[name].append(now() - started)
    return {name: statistics.median(times) for name, times in samples.items()}


def candidates(function: Function) -> dict[str, Function]:
    return {
        "eager": function,
        "peer": functorch.compile.aot_function(function, functorch.compile.nop),
        "aotgrad": aotgrad.aot_function(function, compile_eager),
    }


def against_eager(title: str, forwards: Mapping[str, Callable[[], Backward]]) -> Table:
    seconds = backward_seconds(forwards)
    times = [f"{seconds[name] / MILLISECONDS:.2f}" for name in forwards]
    ratios = [f"{seconds[name] / seconds['eager']:.2f}" for name in forwards]
    return Table(title, ("", *forwards), [["backward (ms)", *times], ["relative to eager", *ratios]])


def heads(x: Tensor, *weights: Tensor) -> list[Tensor]:
    return [(x @ first).tanh() @ second for first, second in zip(weights[::2], weights[1::2], strict=True)]


def one_head_used(function: Function, inputs: Sequence[Tensor]) -> Backward:
    return function(*inputs)[3].sum().backward


def measure_heads() -> Table:
    inputs = [torch.randn(512, 512, requires_grad=True) for _ in range(17)]
    forwards = {name: partial(one_head_used, function, inputs) for name, function in candidates(heads).items()}
    return against_eager("8 heads of two matrix products, one used", forwards)


def layers(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = (x @ weight).relu()
    return x


def gradient_of_input(function: Function, inputs: Sequence[Tensor]) -> Backward:
    return partial(torch.autograd.grad, function(*inputs).sum(), inputs[0])


def measure_inputs() -> Table:
    inputs = [torch.randn(512, 512, requires_grad=True) for _ in range(9)]
    forwards = {name: partial(gradient_of_input, function, inputs) for name, function in candidates(layers).items()}
    return against_eager("`autograd.grad(y, x)` through an 8-layer MLP", forwards)


# --- Variant selection -----------------------------------------------------------------------------------------------


def summed(*inputs: Tensor) -> Tensor:
    return torch.stack(inputs).sum(0)


def seconds_of_selection(count: int) -> float:
    """Seconds that the node of a function of so many inputs takes to select a variant: all tangents, all gradients."""
    found: list[float] = []

    def timed(graph: torch.fx.GraphModule, _: object) -> Function:
        def run(*values: Tensor) -> object:
            (node,) = compiled.plans()[0].executable.backwards
            select = partial(autograd.is_known_full, (values[-1],), node)
            seconds = median_seconds({"select": select, "nothing": lambda: None})
            found.append(seconds["select"] - seconds["nothing"])
            return graph.forward(*values)

        return aotgrad.make_boxed_func(run)

    compiled = aotgrad.aot_function(summed, aotgrad.nop, timed)
    compiled(*(torch.ones(1, requires_grad=True) for _ in range(count))).backward()
    return found[0]


def measure_selection() -> Table:
    rows = [[f"{count} inputs", f"{seconds_of_selection(count) / MICROSECONDS:.2f}"] for count in (3, 100)]
    return Table("Choosing the variant of a plain backward (µs)", ("", "aotgrad"), rows)


# --- Streaming -------------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """Transformer layers and a loss."""

    def __init__(self, width: int = 128):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(self.layers(x), x)


def streaming_models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    model = Encoder()
    peer, ours = functorch.compile, aotgrad
    return {
        "eager": model,
        "peer": peer.aot_module(model, peer.nop, partition_fn=peer.min_cut_rematerialization_partition),
        "K=1": ours.aot_module(model, compile_eager, options={"grad_segments": 1}),
        f"K={SEGMENTS}": ours.aot_module(model, compile_eager, options={"grad_segments": SEGMENTS}),
    }


def timed_step(model: nn.Module, x: Tensor) -> tuple[float, float]:
    """Seconds of a whole step, and the share of the backward until the first gradient."""
    first: list[float] = []

    def note(parameter: Tensor) -> None:
        if not first:
            first.append(now())

    handles = [parameter.register_post_accumulate_grad_hook(note) for parameter in model.parameters()]
    started = now()
    loss = model(x)
    middle = now()
    loss.backward()
    end = now()
    for handle in handles:
        handle.remove()
    model.zero_grad()
    return end - started, (first[0] - middle) / (end - middle)


def measure_streaming() -> Table:
    models, x = streaming_models(), torch.randn(8, 64, 128)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for number in range(ROUNDS + 3):
        for name, model in models.items():
            sample = timed_step(model, x)
            if number >= 3:
                samples[name].append(sample)
    steps = {name: statistics.median(step for step, _ in taken) for name, taken in samples.items()}
    shares = {name: statistics.median(share for _, share in taken) for name, taken in samples.items()}
    few = torch.randn(1, 16, 128)  # Gradients are then most of the memory. The peer keeps the sizes of its first call.
    peaks = {name: min(peak_of_fused_step(model, few) for _ in range(3)) for name, model in streaming_models().items()}
    allocated = [f"{peaks[name] / MEGABYTES:.2f}" for name in models]
    rows = [
        ["first gradient after, of the backward", *(f"{100 * shares[name]:.0f} %" for name in models)],
        ["training step (ms)", *(f"{steps[name] / MILLISECONDS:.1f}" for name in models)],
        ["training step relative to K=1", *(f"{steps[name] / steps['K=1']:.2f}" for name in models)],
        ["allocated by the backward, optimizer in it, 16 tokens (MB)", *allocated],
    ]
    return Table(f"Gradients as they come: a transformer of {LAYERS} layers", ("", *models), rows)


class LiveBytes(TorchDispatchMode):
    """The memory of storages that ops made, now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, Tensor) and not func.is_view and not func._schema.is_mutable:
                self.watch(value.untyped_storage())
        return result

    def watch(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self.known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.freed, key, size)

    def freed(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def peak_of_fused_step(model: nn.Module, x: Tensor) -> int:
    """Peak memory of a backward that updates each parameter and frees its gradient at once.

    The forward runs outside of the mode: a call under a mode runs eagerly.
    """

    def update(parameter: Tensor) -> None:
        with torch.no_grad():
            assert parameter.grad is not None
            parameter.add_(parameter.grad, alpha=-1e-9)
        parameter.grad = None

    handles = [parameter.register_post_accumulate_grad_hook(update) for parameter in model.parameters()]
    loss = model(x)
    with LiveBytes() as memory:
        loss.backward()
    for handle in handles:
        handle.remove()
    return memory.peak


MEASUREMENTS: dict[str, Callable[[], Table]] = {
    "heads": measure_heads,
    "inputs": measure_inputs,
    "selection": measure_selection,
    "streaming": measure_streaming,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    add_threads(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = []
    for name in arguments.only:
        texts.append(MEASUREMENTS[name]().markdown())
        print(texts[-1], flush=True, end="\n\n")
    if arguments.markdown:
        arguments.markdown.write_text("\n\n".join(texts) + "\n")


if __name__ == "__main__":
    main()
