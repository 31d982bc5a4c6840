"""Measure how long capture takes, from the function to the plan, beside the peer, torch's own AOTAutograd.

    python scripts/bench/capture.py
    python scripts/bench/capture.py --only gpt6 lstm50 --rounds 3 --profile profile.txt
    python scripts/bench/capture.py --scaling

Both sides run `aot_module_simplified` with pass-through compilers and the min-cut partitioner on the same model, in turns;
the model itself does not run. `hf_gpt2` is captured from Dynamo's graph. Seconds are medians of processor time, with the
garbage collector on; the ratio is aotgrad over the peer. Memory is the peak size of Python objects (tracemalloc). *floor* is
the model and its backward on torch's fake tensors, of which nothing is recorded, over the peer.

--scaling captures chains of more and more layers. The exponent is the slope of log(seconds) over log(nodes).
"""

import argparse
import cProfile
import gc
import io
import math
import pstats
import statistics
import sys
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.fx as fx
from partition_models import Stop, model_and_inputs
from tabulate import tabulate
from timing import add_threads, environment
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._functorch.aot_autograd import aot_module_simplified as peer_aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition as peer_partition
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

import aotgrad
from aotgrad import pipeline

STAGES = {
    "make_input_specs": "fakes",
    "capture_function": "forward",
    "analyze": "analysis",
    "build_joint": "backward",
    "partition_joint": "partition",
    "make_schedule": "plan",
    "emit": "plan",
    "make_backwards": "plan",
    "build": "plan",
}
"""The functions of the pipeline that make up each stage."""

COLUMNS = ("fakes", "forward", "analysis", "backward", "passes", "partition", "plan", "other")
SCALES = (1_000, 5_000, 20_000, 50_000)
MEGABYTE = 1e6

Inputs = Sequence[Any]
Capture = Callable[[nn.Module, Inputs], object]


class AsTuple(nn.Module):
    """A frontend's module, which returns a flat tuple."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor]:
        return (self.model(*inputs),)


class LSTM(nn.Module):
    """One cell, unrolled."""

    def __init__(self, steps: int = 50, width: int = 32):
        super().__init__()
        self.steps, self.cell, self.head = steps, nn.LSTMCell(width, width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[0]), torch.zeros_like(x[0])
        for step in range(self.steps):
            state = self.cell(x[step], state)
        return self.head(state[0]).mean()


class ManyParameters(nn.Module):
    """Tiny ops, each with its own parameter."""

    def __init__(self, count: int = 400):
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(4)) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = x * scale
        return x.sum()


def mlp(layers: int = 8, width: int = 64) -> nn.Module:
    blocks = (layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU()))
    return nn.Sequential(*blocks, nn.Linear(width, 1), nn.Flatten(0))


class Mean(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).mean()


class Chain(nn.Module):
    """A chain with about `nodes` nodes in its joint graph."""

    NODES_PER_LAYER = 10

    def __init__(self, nodes: int, width: int = 4):
        super().__init__()
        self.weight, self.layers = nn.Parameter(torch.ones(width)), nodes // self.NODES_PER_LAYER

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.layers):
            x = x + torch.tanh(x * self.weight).relu()
        return x.sum()


OWN: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "mlp8": lambda: (Mean(mlp()), [torch.ones(16, 64)]),
    "lstm50": lambda: (LSTM(), [torch.ones(50, 4, 32)]),
    "params400": lambda: (ManyParameters(), [torch.ones(4)]),
}
NAMES = ("mlp8", "resnet50", "unet", "bert6", "gpt6", "gpt24", "llama6", "lstm50", "params400", "hf_gpt2")


def capture_ours(module: nn.Module, inputs: Inputs) -> object:
    return aotgrad.aot_module_simplified(module, inputs, aotgrad.nop)


def capture_peer(module: Any, inputs: Inputs) -> object:
    def nop(gm: fx.GraphModule, example_inputs: Any) -> Any:
        return gm

    return peer_aot_module_simplified(module, tuple(inputs), nop, nop, partition_fn=peer_partition)


SIDES: dict[str, Capture] = {"peer": capture_peer, "aotgrad": capture_ours}


def run_on_fakes(module: nn.Module, inputs: Inputs) -> object:
    """Shapes alone: the forward, and the gradients of all inputs and parameters that have one."""
    with FakeTensorMode() as mode:
        named = chain(module.named_parameters(), module.named_buffers())
        state: dict[str, Any] = {name: mode.from_tensor(value) for name, value in named}
        fakes = [mode.from_tensor(value) if isinstance(value, Tensor) else value for value in inputs]
        results = tree_leaves(torch.func.functional_call(module, state, tuple(fakes)))
        leaves = [value for value in (*state.values(), *fakes) if isinstance(value, Tensor) and value.requires_grad]
        losses = [value.sum() for value in results if isinstance(value, Tensor) and value.requires_grad]
        return torch.autograd.grad(losses, leaves, allow_unused=True)


class Stopwatch:
    """Seconds of processor time by stage: wraps the functions of the pipeline."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, stage: str, function: Callable) -> Callable:
        def run(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[stage] += time.process_time() - started

        return run

    @contextmanager
    def running(self) -> Iterator[None]:
        run = self.timed("passes", pipeline.Pipeline.run)
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(pipeline.Pipeline, "run", run))
            for name, stage in STAGES.items():
                stack.enter_context(mock.patch.object(pipeline, name, self.timed(stage, getattr(pipeline, name))))
            yield


def seconds_of(capture: Capture, module: nn.Module, inputs: Inputs) -> float:
    gc.collect()
    started = time.process_time()
    capture(module, inputs)
    return time.process_time() - started


def stages_of(module: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Seconds of one capture of ours, by stage."""
    watch = Stopwatch()
    with watch.running():
        total = seconds_of(capture_ours, module, inputs)
    return {**dict.fromkeys(COLUMNS, 0.0), **watch.seconds, "other": total - sum(watch.seconds.values())}


def peak_bytes(capture: Capture, module: nn.Module, inputs: Inputs) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        capture(module, inputs)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def measure(module: nn.Module, inputs: Inputs, rounds: int) -> dict[str, float]:
    """Medians: seconds of each side and of each stage; and the peak of each side, if `rounds` is positive."""
    candidates = {**SIDES, "floor": run_on_fakes}
    samples: dict[str, list[float]] = {key: [] for key in (*candidates, *COLUMNS)}
    for capture in candidates.values():
        capture(module, inputs)  # imports and caches, once per process, count for no side
    for _ in range(rounds):
        for side, capture in candidates.items():
            samples[side].append(seconds_of(capture, module, inputs))
        for stage, seconds in stages_of(module, inputs).items():
            samples[stage].append(seconds)
    found = {key: statistics.median(values) for key, values in samples.items()}
    return {**found, **{f"{side} MB": peak_bytes(capture, module, inputs) / MEGABYTE for side, capture in SIDES.items()}}


def with_model(name: str, use: Callable[[nn.Module, Inputs], Any]) -> Any:
    """`use(module, inputs)` of a model, inside Dynamo's call of a backend if the model is from `transformers`."""
    model, inputs = OWN[name]() if name in OWN else model_and_inputs(name)
    model.train()
    if not name.startswith("hf_"):
        return use(AsTuple(model), inputs)
    found: list[Any] = []

    def backend(module: fx.GraphModule, given: Inputs) -> Callable:
        found.append(use(module, given))
        raise Stop

    torch._dynamo.reset()
    with suppress(Stop, BackendCompilerFailed):
        torch.compile(model, backend=backend, fullgraph=True)(*inputs)
    return found[0]


def profiled(module: nn.Module, inputs: Inputs) -> str:
    capture_ours(module, inputs)
    profile = cProfile.Profile()
    profile.runcall(capture_ours, module, inputs)
    text = io.StringIO()
    for order in ("tottime", "cumtime"):
        pstats.Stats(profile, stream=text).strip_dirs().sort_stats(order).print_stats(60)
    return text.getvalue()


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    align = ("left", *["right"] * (len(headers) - 1))
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True, colalign=align)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def model_tables(names: Sequence[str], rounds: int) -> str:
    totals, stages, ratios = [], [], []
    for name in names:
        found = with_model(name, partial(measure, rounds=rounds))
        ratios.append(found["aotgrad"] / found["peer"])
        seconds, memory = [f"{found[side]:.3f}" for side in SIDES], [f"{found[f'{side} MB']:.1f}" for side in SIDES]
        totals.append([name, *seconds, f"{ratios[-1]:.2f}", f"{found['floor'] / found['peer']:.2f}", *memory])
        stages.append([name, *(f"{1000 * found[stage]:.1f}" for stage in COLUMNS)])
        print(*totals[-1], "|", *(f"{stage} {1000 * found[stage]:.1f}" for stage in COLUMNS), file=sys.stderr, flush=True)
    mean = ["geometric mean", "", "", f"{geometric_mean(ratios):.2f}", "", "", ""]
    headers = ("", "peer (s)", "aotgrad (s)", "ratio", "floor", "peer, peak (MB)", "aotgrad, peak (MB)")
    stage_headers = ("aotgrad, by stage (ms)", *COLUMNS)
    return f"{table(headers, [*totals, mean])}\n\n{table(stage_headers, stages)}"


def joint_nodes(module: nn.Module, inputs: Inputs) -> int:
    sizes: list[int] = []

    def partition(graph: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(graph.graph.nodes))
        return aotgrad.default_partition(graph, *args, **kwargs)

    aotgrad.aot_module_simplified(module, inputs, aotgrad.nop, partition_fn=partition)
    return sizes[0]


def fitted_exponent(nodes: Sequence[float], seconds: Sequence[float]) -> float:
    return statistics.linear_regression([math.log(n) for n in nodes], [math.log(s) for s in seconds]).slope


def scaling_table(scales: Sequence[int], rounds: int) -> str:
    rows, counts, times = [], [], []
    for nodes in scales:
        module, inputs = AsTuple(Chain(nodes)), [torch.ones(4)]
        counts.append(joint_nodes(module, inputs))
        runs = [stages_of(module, inputs) for _ in range(rounds)]
        stages = {stage: statistics.median(run[stage] for run in runs) for stage in COLUMNS}
        times.append(stages)
        total, memory = sum(stages.values()), peak_bytes(capture_ours, module, inputs) / MEGABYTE
        rows.append([str(counts[-1]), f"{total:.2f}", *(f"{stages[stage]:.2f}" for stage in COLUMNS), f"{memory:.0f}"])
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    slopes = [fitted_exponent(counts, [max(run[stage], 1e-6) for run in times]) for stage in COLUMNS]
    whole = fitted_exponent(counts, [sum(run.values()) for run in times])
    rows.append(["exponent", f"{whole:.2f}", *(f"{slope:.2f}" for slope in slopes), ""])
    return table(("nodes", "seconds", *COLUMNS, "peak (MB)"), rows)


def header() -> str:
    return f"{environment()}; medians; ratio = aotgrad / peer"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=list(NAMES), help="the models; none of them: no table")
    parser.add_argument("--rounds", type=int, default=7, help="samples of each side (default: %(default)s)")
    add_threads(parser)
    parser.add_argument("--scaling", action="store_true", help="how the time grows with the number of nodes")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write where the time goes in place of measuring it")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    if arguments.profile:
        arguments.profile.write_text("\n".join(f"{name}\n{with_model(name, profiled)}" for name in arguments.only))
        return
    blocks = [header()]
    if arguments.only:
        blocks.append(model_tables(arguments.only, arguments.rounds))
    if arguments.scaling:
        blocks.append(scaling_table(SCALES, min(arguments.rounds, 3)))
    print("\n\n".join(blocks))


if __name__ == "__main__":
    main()
