"""Measure backwards of aotgrad beside eager and its peer, torch's own AOTAutograd: heads, wanted gradients, streaming.

    python scripts/bench/backward.py
    python scripts/bench/backward.py --only heads selection --markdown backward.md

The candidates take turns in one process; medians of processor time are compared. All graphs run as plain FX code
("eager halves"), so only the choice of gradients and their order differ. *floor* is the backward graph alone, or the graphs
of a step; the largest op of the backward; and two comparisons in place of a choice.
"""

import argparse
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import functorch.compile
import torch
import torch.nn.functional as F
from graph_calls import GraphCalls, recorded
from live_bytes import LiveBytes
from tabulate import tabulate
from timing import add_threads, environment, median_seconds, now
from torch import Tensor, nn

import aotgrad
from aotgrad.backends import get
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


def against_eager(title: str, function: Function, inputs: Sequence[Tensor], backward_of: Callable) -> Table:
    """`backward_of(function, inputs)` runs a forward and returns its backward."""

    def compiled(graphs: GraphCalls) -> Callable[[], None]:
        call = aotgrad.aot_function(function, graphs)
        return lambda: backward_of(call, inputs)()

    graphs = recorded(get("eager"), compiled)
    forwards: dict[str, Callable[[], Backward]] = {"floor": lambda: graphs.replay_last}
    forwards = {name: partial(backward_of, each, inputs) for name, each in candidates(function).items()} | forwards
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
    return against_eager("8 heads of two matrix products, one used", heads, inputs, one_head_used)


def layers(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = (x @ weight).relu()
    return x


def gradient_of_input(function: Function, inputs: Sequence[Tensor]) -> Backward:
    return partial(torch.autograd.grad, function(*inputs).sum(), inputs[0])


def measure_inputs() -> Table:
    inputs = [torch.randn(512, 512, requires_grad=True) for _ in range(9)]
    return against_eager("`autograd.grad(y, x)` through an 8-layer MLP", layers, inputs, gradient_of_input)


# --- Variant selection -----------------------------------------------------------------------------------------------


def summed(*inputs: Tensor) -> Tensor:
    return torch.stack(inputs).sum(0)


def is_known(tangent: Tensor | None, wanted: int, expected: int) -> bool:
    """The least that selects a variant."""
    return tangent is not None and wanted == expected


def seconds_of_selection(count: int) -> dict[str, float]:
    """Seconds that the node of a function of so many inputs takes to select a variant: all tangents, all gradients."""
    found: list[dict[str, float]] = []

    def timed(graph: torch.fx.GraphModule, _: object) -> Function:
        def run(*values: Tensor) -> object:
            (node,) = compiled.plans()[0].executable.backwards
            select = partial(autograd.is_known_full, (values[-1],), node)
            floor = partial(is_known, values[-1], 2**count - 1, 2**count - 1)
            seconds = median_seconds({"aotgrad": select, "floor": floor, "nothing": lambda: None})
            found.append({side: seconds[side] - seconds["nothing"] for side in ("aotgrad", "floor")})
            return graph.forward(*values)

        return aotgrad.make_boxed_func(run)

    compiled = aotgrad.aot_function(summed, aotgrad.nop, timed)
    compiled(*(torch.ones(1, requires_grad=True) for _ in range(count))).backward()
    return found[0]


def measure_selection() -> Table:
    found = {count: seconds_of_selection(count) for count in (3, 100)}
    rows = [[f"{n} inputs", *(f"{time / MICROSECONDS:.2f}" for time in seconds.values())] for n, seconds in found.items()]
    return Table("Choosing the variant of a plain backward (µs)", ("", "aotgrad", "floor"), rows)


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


def graphs_of_a_step(x: Tensor) -> Callable[[], tuple[float, float]]:
    """Times the graphs of a step alone, as `timed_step`; a gradient can come at once."""

    def compiled(graphs: GraphCalls) -> Callable[[], None]:
        model = aotgrad.aot_module(Encoder(), graphs)
        return lambda: model(x).backward()

    graphs = recorded(get("eager"), compiled)

    def run() -> tuple[float, float]:
        started = now()
        graphs.replay()
        return now() - started, 0.0

    return run


def measure_streaming() -> Table:
    models, x = streaming_models(), torch.randn(8, 64, 128)
    steps_of = {name: partial(timed_step, model, x) for name, model in models.items()} | {"floor": graphs_of_a_step(x)}
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in steps_of}
    for number in range(ROUNDS + 3):
        for name, step in steps_of.items():
            sample = step()
            if number >= 3:
                samples[name].append(sample)
    steps = {name: statistics.median(step for step, _ in taken) for name, taken in samples.items()}
    shares = {name: statistics.median(share for _, share in taken) for name, taken in samples.items()}
    few = torch.randn(1, 16, 128)  # Gradients are then most of the memory. The peer keeps the sizes of its first call.
    found = {name: [memory_of_fused_step(model, few) for _ in range(3)] for name, model in streaming_models().items()}
    allocated = {name: min(memory.peak for memory in memories) for name, memories in found.items()}
    allocated["floor"] = min(memory.largest for memory in found["eager"])
    rows = [
        ["first gradient after, of the backward", *(f"{100 * share:.0f} %" for share in shares.values())],
        ["training step (ms)", *(f"{seconds / MILLISECONDS:.1f}" for seconds in steps.values())],
        ["training step relative to K=1", *(f"{seconds / steps['K=1']:.2f}" for seconds in steps.values())],
        [
            "allocated by the backward, optimizer in it, 16 tokens (MB)",
            *(f"{n / MEGABYTES:.2f}" for n in allocated.values()),
        ],
    ]
    return Table(f"Gradients as they come: a transformer of {LAYERS} layers", ("", *models, "floor"), rows)


def memory_of_fused_step(model: nn.Module, x: Tensor) -> LiveBytes:
    """The memory of a backward that updates each parameter and frees its gradient at once.

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
    return memory


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
    print(f"{environment()}; medians\n", flush=True)
    for name in arguments.only:
        texts.append(MEASUREMENTS[name]().markdown())
        print(texts[-1], flush=True, end="\n\n")
    if arguments.markdown:
        arguments.markdown.write_text("\n\n".join(texts) + "\n")


if __name__ == "__main__":
    main()
